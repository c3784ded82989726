from dataclasses import replace

import numpy as np
import onnx
import pytest
from networks import network
from tensorrt_operators import prepared_and_checked

from export.equivalence import EquivalenceError, compare, onnx_classifier, torch_classifier
from export.graph import Served, rewrite, to_onnx
from export.images import embedded_sample
from export.rewrites import fuse
from export.rewrites.errors import DoesNotApply
from export.rewrites.fuse import fuse_attention
from export.rewrites.pipeline import ALL, FUSE, Rewrite
from export.rewrites.prune import cls_only
from models.config import ModelConfig
from models.registry import build

SMALL = ModelConfig(model="vitbn", depth=2, dim=24, heads=2, dim_head=8, mlp_dim=40)
ABSORBED = replace(SMALL, dim=8)  # cheap enough to absorb in every block
BIASED = replace(SMALL, qkv_bias=True)


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


NARROW = replace(BIASED, dim=6)  # more query rows than features: the bias of the query stays


@pytest.mark.parametrize(
    "config", [SMALL, BIASED, NARROW, ABSORBED, replace(SMALL, model="vit")], ids=lambda c: f"{c.model}"
)
@pytest.mark.parametrize("rewrites", [(), (*FUSE, cls_only), ALL], ids=["plain", "folded, CLS row", "all"])
def test_the_same_answers(config: ModelConfig, rewrites: tuple[Rewrite, ...]) -> None:
    model = network(config)
    before, steps = rewrite(model, rewrites, ())
    after, _ = rewrite(model, (*rewrites, fuse_attention), ())
    images = embedded_sample(config).images
    compare("fused", torch_classifier(before), torch_classifier(after), images, 1e-10)
    left = [step.rewrite for step in steps if step.left_out]
    assert not [m for m in after.modules() if getattr(m, "fused", True) is False], left


def test_a_scale_that_is_forgotten_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network(SMALL)
    before, _ = rewrite(model, FUSE, ())
    monkeypatch.setattr(fuse, "_scale_queries", lambda layer: setattr(layer, "scale", 1.0))
    wrong, _ = rewrite(model, (*FUSE, fuse_attention), ())
    with pytest.raises(EquivalenceError):
        compare("fused", torch_classifier(before), torch_classifier(wrong), embedded_sample(SMALL).images, 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "rewrites"), [(replace(SMALL, depth=1), FUSE), (ABSORBED, ALL)], ids=["folded", "all"]
)
def test_the_graph_has_nothing_between_product_and_softmax(config: ModelConfig, rewrites: tuple[Rewrite, ...]) -> None:
    served, _ = rewrite(network(config), (*rewrites, fuse_attention), ())
    proto = to_onnx(served.float(), config, 20)
    assert attention_of(proto) == [[]] * config.depth
    prepared_and_checked(proto)
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in proto.graph.value_info}
    assert {ranks[node.input[0]] for node in proto.graph.node if node.op_type == "Softmax"} == {4}
    images = embedded_sample(config).images
    found = onnx_classifier(proto.SerializeToString())(images)
    assert np.allclose(found, torch_classifier(Served(served.model, served.scale_folded))(images), atol=1e-4)


def test_a_cnn_has_no_attention() -> None:
    with pytest.raises(DoesNotApply, match="CNN: there is no attention"):
        fuse_attention(build(ModelConfig(model="cnn")))
