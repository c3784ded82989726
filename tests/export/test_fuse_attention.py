from collections import Counter
from dataclasses import replace

import onnx
import pytest
from networks import SMALL, VARIANT, error, plain, rewritten
from tensorrt_operators import prepared_and_checked

from export.checkpoint_to_onnx import ONE_IMAGE, Form, rewrite
from export.engines import fuse_attention as module
from export.engines.fuse_attention import fuse_attention
from models.networks.config import ModelConfig

ABSORBED = replace(SMALL, dim=8, heads=2, dim_head=8)  # cheap enough to absorb in every block
FUSED = [Form(rewrites, fuse_attention=True) for rewrites in ("none", "bn", "all")]


def attention_of(proto: onnx.ModelProto) -> list[list[str]]:
    """The operators between Softmax and the product before, nearest first."""
    made_by = {name: node for node in proto.graph.node for name in node.output}
    chains = []
    for softmax in (node for node in proto.graph.node if node.op_type == "Softmax"):
        chain, node = [], made_by[softmax.input[0]]
        while node.op_type != "MatMul":
            chain.append(node.op_type)
            node = made_by[node.input[0]]
        chains.append(chain)
    return chains


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "form"),
    [
        *((SMALL, form) for form in FUSED),
        (VARIANT, FUSED[1]),
        (ABSORBED, FUSED[2]),
        *((replace(SMALL, model="vit"), form) for form in (FUSED[0], FUSED[2])),
    ],
    ids=["none", "bn", "all", "biases", "absorbed", "vit", "vit, all"],
)
def test_nothing_stands_between_product_and_softmax_in_rank_4(config: ModelConfig, form: Form) -> None:
    done = rewrite(plain(config), form)
    assert error(config, done) <= 1e-12
    assert (done.steps[-1].name, len(done.steps[-1].sites)) == ("fuse-attention", config.depth)
    proto = rewritten(config, form)
    assert attention_of(proto) == [[]] * config.depth
    prepared_and_checked(proto)
    inferred = onnx.shape_inference.infer_shapes(proto)
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in inferred.graph.value_info}
    assert {ranks[node.input[0]] for node in proto.graph.node if node.op_type == "Softmax"} == {4}
    assert Counter(node.op_type for node in proto.graph.node)["Mul"] <= config.depth + 1, "of the queries, and 1/255"


@pytest.mark.slow
def test_a_factor_that_is_forgotten_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._unscaled
    monkeypatch.setattr(module, "_unscaled", lambda scores: (real(scores)[0], 1.0))
    assert error(SMALL, rewrite(plain(SMALL), FUSED[0])) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (ModelConfig(depth=1), "expected a product of queries and keys"),  # a constant query of one block
        (ModelConfig(depth=2, dim=32, dim_head=16, class_attention=(32, 16)), "expected a product of queries and keys"),
    ],
    ids=["one block", "class attention"],
)
def test_scores_of_a_constant_query_stay_and_are_named(config: ModelConfig, reason: str) -> None:
    step = rewrite(plain(config), FUSED[2]).steps[-1]
    assert reason in str(step.refusals[-1])


def test_a_cnn_has_no_attention() -> None:
    done = rewrite(plain(ModelConfig(model="cnn")), FUSED[0])
    assert fuse_attention(done.model, ONE_IMAGE).sites == ()
    assert done.steps[-1].left_out == "nothing of its kind"
