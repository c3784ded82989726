"""Our networks on the compiler's road: any geometry in any form, what is left of their work, and what is refused."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import FOLD, NEVER_FOLD, SMALL, SMALLEST, checkpoint, error, geometries, network, plain, rewritten

from export.checkpoint_to_onnx import Form, check_network, export, rewrite
from export.compiler.analyses import batch_invariant
from export.errors import RewriteError
from models.networks.config import MODEL_NAMES, ModelConfig
from models.networks.foldable_norms import anneal
from models.networks.registry import build, randomise_norms

FORMS = [Form("bn"), Form("all"), Form("none", fuse_attention=True), Form("all", fuse_attention=True)]
NARROW = ModelConfig(depth=1, heads=32, dim_head=16, mlp_dim=256)


@pytest.mark.slow
@settings(
    suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=settings.default.max_examples // 5
)
@given(geometries(), st.integers(0, 1000))
def test_networks_of_any_geometry_answer_alike_after_every_rewrite(config: ModelConfig, seed: int) -> None:
    """An export takes 20 times as long as a rewrite and its proof."""
    for form in FORMS:
        done = rewrite(plain(config, seed), form)
        assert error(config, done, seed) <= 1e-10  # measured: at most 1e-14
        assert done.steps[-1].macs <= done.macs
        norms = Counter(node.op_type for node in done.model.graph)["BatchNormalization"]
        assert not norms or form.rewrites == "none"


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        *(SMALLEST[model] for model in FOLD),
        *(ModelConfig(model=model, depth=1) for model in ("vit", "vitbnffn", "vitbn")),
        *(ModelConfig(model=model, depth=2) for model in ("vit", "vitbn")),
        *(ModelConfig(model=model) for model in ("cnn", "dnn", "dnnbn")),
    ],
    ids=lambda config: f"{config.model}-{config.dim}-{config.depth}",
)
def test_nodes_of_the_rewritten_graph(config: ModelConfig) -> None:
    # Around the patch embedding, before attention and FFN, at the end; ViTBNFFN has none before its FFN.
    norms = {"vit": 3 + 2 * config.depth, "vitbnffn": 3 + config.depth}.get(config.model, 0)
    is_large = config.model.startswith("vit") and config.dim != SMALL.dim
    for form in FORMS[:2]:
        done = rewrite(plain(config), form)
        counts = Counter(node.op_type for node in done.model.graph)
        assert (counts["BatchNormalization"], counts["LayerNormalization"], counts["Cast"]) == (0, norms, 1)
        assert counts["Mul"] == 0 or is_large, "the epsilon of a LayerNorm takes up the 1/255 before it"
        assert error(config, done) <= 1e-12
    if not config.model.startswith("vit"):
        return
    graph = rewritten(config, Form("all")).graph
    counts = Counter(node.op_type for node in graph.node)
    for absent in ("Split", "Einsum", "Shape", "Concat", "Expand", "Constant"):
        assert counts[absent] == 0, absent
    assert counts["Transpose"] == 1 + config.depth  # the patches, and the tokens of each block
    constants = {tensor.name for tensor in graph.initializer}
    assert not [node.op_type for node in graph.node if set(node.input) <= constants]
    if config == replace(ModelConfig(), depth=config.depth):
        # Positions, then per block two residuals and two FFN biases; one block adds scores of positions instead.
        assert counts["Add"] == {1: 4, 2: 8}[config.depth]


@pytest.mark.slow
def test_a_folded_norm_leaves_no_bias_of_queries_keys_and_values() -> None:
    """A sum of 1,536 features where a norm of 64 stood cost more than the norm: 0.91 of the plain export's speed."""
    config = ModelConfig(depth=2)
    sums = [node for node in rewrite(plain(config), Form("bn")).model.graph if node.op_type == "Add"]
    features = [node.outputs[0].shape[-1] for node in sums if node.outputs[0].shape is not None]
    assert len(features) == len(sums) > 0
    assert 3 * config.heads * config.dim_head not in features


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "macs"),
    [
        (ModelConfig(depth=1), 63_360),
        (ModelConfig(model="vit", depth=1), 117_376),
        (ModelConfig(model="vitbnffn", depth=1), 117_376),
        (ModelConfig(model="vit", depth=2), 1_838_720),
        (NARROW, 218_752),
        (replace(NARROW, depth=2, qkv_bias=True), 3_496_576),
        (ModelConfig(depth=2, dim=32, dim_head=16, class_attention=(32, 16)), 559_936),
    ],
    ids=["one block", "one of vit", "one of vitbnffn", "vit", "narrow", "two narrow with biases", "late"],
)
def test_the_work_that_is_left(config: ModelConfig, macs: int) -> None:
    """What the rewriter of PyTorch modules left before."""
    assert rewrite(plain(config), Form("all")).steps[-1].macs <= macs


@pytest.mark.slow
def test_a_norm_of_the_class_token_is_computed_once_and_a_wrong_number_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, right = ModelConfig(model="vit", depth=1), batch_invariant._evaluated
    assert error(config, rewrite(plain(config), Form("all"))) <= 1e-12

    def wrong(*given: Any) -> Any:
        made = right(*given)
        return made if made is None else 1.01 * made

    monkeypatch.setattr(batch_invariant, "_evaluated", wrong)
    assert error(config, rewrite(plain(config), Form("all"))) > 1e-6


@pytest.mark.parametrize("model", NEVER_FOLD)
def test_a_norm_that_looks_at_each_image_anew_is_refused_by_name_and_left_out(model: str) -> None:
    config = replace(SMALL, model=model)
    with pytest.raises(RewriteError, match=r"patch_norm: expected an affine map in eval mode, found .* statistics"):
        check_network(network(config), folds=True)
    check_network(network(config), folds=False)


def test_a_norm_that_was_still_changing_is_refused_by_name_with_and_without_rewrites() -> None:
    changing = checkpoint(replace(SMALL, model="vit-prepbn"))
    anneal(changing.model, 0.25)
    for form in (Form("none"), Form("bn"), Form("all")):
        with pytest.raises(RewriteError, match=r"patch_norm: expected no LayerNorm .* of 0\.688; train to the end"):
            export(changing, form)


@pytest.mark.parametrize(
    ("tensor", "value", "found"),
    [
        ("blocks.0.ffn.linear1.weight", float("nan"), "expected finite numbers, found nan"),
        ("head.bias", float("-inf"), "expected finite numbers, found -inf"),
        ("blocks.1.attention.norm.norm.running_var", float("inf"), "expected finite numbers, found inf"),
        ("norm.norm.running_var", -1.0, "expected variances of at least 0, found -1.0"),
    ],
)
def test_bad_numbers_are_refused_by_name(tensor: str, value: float, found: str) -> None:
    broken = checkpoint(SMALL)
    broken.model.state_dict()[tensor].flatten()[0] = value
    with pytest.raises(RewriteError, match=f"{tensor}: {found}"):
        export(broken)


@pytest.mark.slow
def test_a_norm_with_nothing_linear_beside_it_is_refused_by_name() -> None:
    network = checkpoint(replace(SMALL, depth=1))
    network.model.get_submodule("blocks.0.ffn").add_module("dropout1", torch.nn.BatchNorm1d(17).eval())
    with pytest.raises(RewriteError, match="expected a linear layer beside this BatchNormalization, found none"):
        export(network)


@pytest.mark.slow
def test_the_callers_network_and_graph_are_left_alone() -> None:
    before = checkpoint(SMALL)
    weights = {name: tensor.clone() for name, tensor in before.model.state_dict().items()}
    proto = plain(SMALL)
    data = proto.SerializeToString()
    rewrite(proto, Form("all", fuse_attention=True))
    export(before, Form("all"))
    assert proto.SerializeToString() == data
    assert all(torch.equal(weights[name], tensor) for name, tensor in before.model.state_dict().items())


@pytest.mark.parametrize("model", [name for name in MODEL_NAMES if name != "dnn"])
def test_randomised_norms_are_no_identity(model: str) -> None:
    """The tests above rely on this."""
    config = ModelConfig(model=model, depth=1)
    torch.manual_seed(0)
    fresh = build(config).eval()
    x = torch.rand(3, 1, 28, 28)
    with torch.inference_mode():
        before = fresh(x)
        randomise_norms(fresh)
        assert (fresh(x) - before).abs().max() > 1e-2


def test_steps_name_places() -> None:
    done = rewrite(plain(SMALL), Form("bn"))
    folding, *_ = done.steps
    assert tuple(step.name for step in done.steps) == Form("bn").passes
    assert len(folding.sites) == 10
