"""All rewrites, alone and together: exact to 1e-10 for any geometry, less work, refusals with reasons, faults seen."""

import copy
from collections import Counter
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from export.graph import Exported, Served, export
from export.rewrites import absorb, biases
from export.rewrites.absorb import AbsorbedAttention, absorb_attention
from export.rewrites.biases import QueryBiasAttention, carry_biases
from export.rewrites.embedding import PatchBlock, absorb_embedding
from export.rewrites.errors import DoesNotApply, RewriteError
from export.rewrites.fold import fold_batchnorm, fold_input_scale
from export.rewrites.patches import cut_by_channel
from export.rewrites.pipeline import ALL, FUSE, Step, apply
from export.rewrites.prune import ClsBlock, Constant, cls_only
from models.checkpoint import Checkpoint, load
from models.config import TRANSFORMER_NAMES, ModelConfig
from models.macs import macs_per_image
from models.norms import TokenNorm, anneal
from models.registry import build, randomise_norms

SMALL = ModelConfig(depth=2, dim=16, heads=4, dim_head=16, mlp_dim=24)
NEVER_FOLD = ("vit-dtn", "vit-minmax", "vit-zscore")
FOLD = [name for name in TRANSFORMER_NAMES if name not in NEVER_FOLD]
LIKE_VITBN = [name for name in FOLD if name not in ("vit", "vitbnffn")]  # no norm is left of these


def network(config: ModelConfig, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = build(config).eval()
    randomise_norms(model, seed)
    return model.double()


def pixels(config: ModelConfig) -> torch.Tensor:
    return torch.randint(0, 256, (3, *config.input_shape), generator=torch.Generator().manual_seed(1)).double()


def answer(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model(x)


def error(model: nn.Module, rewritten: nn.Module, config: ModelConfig) -> float:
    x = pixels(config) / 255
    return float((answer(model, x) - answer(rewritten, x)).abs().max())


@st.composite
def geometries(draw: st.DrawFn) -> ModelConfig:
    patch = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    grid = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    heads = draw(st.integers(1, 4))
    dim = 2 * draw(st.integers(1, 12))
    classes = draw(st.integers(1, 12))
    return ModelConfig(
        model=draw(st.sampled_from(TRANSFORMER_NAMES)),
        image_size=(patch[0] * grid[0], patch[1] * grid[1]),
        patch_size=patch,
        channels=draw(st.integers(1, 3)),
        num_classes=classes,
        dim=dim,
        depth=draw(st.sampled_from([1, 1, 2, 3, 12])),
        heads=heads,
        dim_head=draw(st.sampled_from([dim, 4, 9, 32])),
        mlp_dim=draw(st.integers(1, 40)),
        pool=draw(st.sampled_from(["cls", "mean"])),
        pos_emb=draw(st.sampled_from(["learn", "pe1d"])),
        bn_features=draw(st.sampled_from(["dim", "one"])),
        qkv_bias=draw(st.booleans()),
        labels=tuple(map(str, range(classes))),
    )


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(st.data(), st.integers(0, 1000))
def test_any_geometry_after_each_rewrite_and_after_all(data: st.DataObject, seed: int) -> None:
    config = data.draw(geometries())
    model = network(config, seed)
    x = pixels(config)
    expected = answer(model, x / 255)
    bound = 1e-10 * max(1.0, float(expected.abs().max()))
    rewritten, scaled = model, False
    for rewrite in ALL:
        try:
            rewritten = rewrite(rewritten)
        except DoesNotApply:
            continue
        scaled = scaled or rewrite is fold_input_scale
        assert (answer(rewritten, x if scaled else x / 255) - expected).abs().max() <= bound, rewrite.__name__
    assert scaled == (config.model in FOLD)
    assert macs_per_image(rewritten) <= macs_per_image(model)


@pytest.mark.parametrize("model", FOLD)
@pytest.mark.parametrize(("depth", "before", "after"), [(6, 16_866_944, 8_593_024), (1, 2_853_504, 63_360)])
def test_the_work_that_is_left(model: str, depth: int, before: int, after: int) -> None:
    config = ModelConfig(model=model, depth=depth)
    if depth == 1 and model not in LIKE_VITBN:
        after = 117_376  # a LayerNorm stands between the patch embedding and the attention
    rewritten, steps = apply(network(config), ALL, ())
    assert macs_per_image(network(config)) == before
    assert macs_per_image(rewritten) == steps[-1].macs == after


@pytest.mark.parametrize("model", LIKE_VITBN)
def test_nothing_is_left_of_a_norm_that_folds(model: str) -> None:
    rewritten, _ = apply(network(replace(SMALL, model=model)), ALL, ())
    assert not [name for name, module in rewritten.named_modules() if isinstance(module, TokenNorm | nn.LayerNorm)]


@pytest.mark.parametrize("model", NEVER_FOLD)
def test_a_norm_that_looks_at_each_image_anew_is_refused_by_name(model: str) -> None:
    config = replace(SMALL, model=model)
    with pytest.raises(DoesNotApply, match=r"patch_norm: expected an affine map in eval mode, found .* statistics"):
        apply(network(config), ALL, [fold_batchnorm])
    rewritten, steps = apply(network(config), ALL, ())
    assert steps[0].left_out
    assert error(network(config), rewritten, config) < 1e-10


def test_rows_are_not_cut_where_a_norm_reads_them() -> None:
    model = network(replace(SMALL, model="vit-dtn"))
    with pytest.raises(DoesNotApply, match=r"blocks\.1\.ffn\.norm: expected a norm of each row alone"):
        cls_only(model)


def test_a_norm_that_was_still_changing_is_refused_by_name_with_and_without_rewrites() -> None:
    model = network(replace(SMALL, model="vit-prepbn")).float()
    anneal(model, 0.25)
    for rewrites in ((), ALL):
        with pytest.raises(RewriteError, match=r"patch_norm: expected no LayerNorm left .* found a share of 0\.5"):
            export(Checkpoint(Path("x"), model, model.config, "0"), rewrites)


def test_each_rewrite_alone() -> None:
    for rewrite in (absorb_attention, cls_only):
        assert error(network(SMALL), rewrite(network(SMALL)), SMALL) < 1e-10
    folded = fold_batchnorm(network(SMALL))
    for rewrite in (carry_biases, cut_by_channel):
        assert error(folded, rewrite(folded), SMALL) < 1e-10


def test_the_callers_model_is_left_alone() -> None:
    model = network(SMALL)
    before = copy.deepcopy(model.state_dict())
    apply(model, ALL, ())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert isinstance(model.get_submodule("blocks.1").attention, type(model.get_submodule("blocks.0").attention))


def test_the_query_of_a_network_of_one_block_is_constant() -> None:
    block = cls_only(absorb_attention(network(replace(SMALL, depth=1)))).get_submodule("blocks.0")
    assert isinstance(block, ClsBlock)
    assert isinstance(block.row, Constant)
    assert isinstance(block.attention.query, Constant)


def test_absorption_that_does_not_pay_is_left_out_and_says_why() -> None:
    config = ModelConfig(depth=1, dim=128, heads=8, dim_head=16)
    with pytest.raises(DoesNotApply, match=r"absorbing costs 5,048,320 multiplications .* instead of 1,188,096"):
        absorb_attention(network(config))
    rewritten, steps = apply(network(config), ALL, ())
    assert steps[1].left_out
    assert not any(isinstance(module, AbsorbedAttention) for module in rewritten.modules())
    with pytest.raises(DoesNotApply):
        apply(network(config), ALL, (absorb_attention,))


def test_mean_pooling_reads_every_row() -> None:
    with pytest.raises(DoesNotApply, match="head: expected pool 'cls', found 'mean'"):
        cls_only(network(replace(SMALL, pool="mean")))


def test_rewrites_in_the_wrong_order_or_twice_are_refused() -> None:
    with pytest.raises(RewriteError, match=r"blocks\.1\.attention: expected Attention, found ClsAttention"):
        absorb_attention(cls_only(network(SMALL)))
    with pytest.raises(RewriteError, match=r"blocks\.1: expected every row"):
        cls_only(cls_only(network(SMALL)))
    with pytest.raises(RewriteError, match=r"blocks\.0\.attention: expected Attention, found AbsorbedAttention"):
        absorb_attention(absorb_attention(network(SMALL)))


def test_the_cnn_has_nothing_to_absorb() -> None:
    rewritten, steps = apply(network(ModelConfig(model="cnn")), ALL, ())
    assert [step.rewrite for step in steps if not step.left_out] == ["fold_batchnorm", "fold_input_scale"]
    with pytest.raises(DoesNotApply, match="CNN: there is no attention"):
        absorb_attention(rewritten)


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
    model = network(SMALL)
    model.state_dict()[tensor].flatten()[0] = value
    with pytest.raises(RewriteError, match=f"{tensor}: {found}"):
        fold_batchnorm(model)


def without_scale(attention: object) -> nn.Linear:
    layer = REAL_QUERY(attention)
    layer.weight.data *= attention.dim_head**0.5
    return layer


def transposed(attention: object) -> nn.Linear:
    layer = REAL_QUERY(attention)
    per_head = layer.weight.data.unflatten(0, (attention.heads, -1))
    layer.weight.data = per_head.transpose(1, 2).flatten(0, 1).contiguous()
    return layer


def without_bias(attention: object) -> nn.Linear:
    layer = REAL_QUERY(attention)
    layer.bias.data.zero_()
    return layer


def heads_reversed(attention: object) -> nn.Linear:
    layer = REAL_QUERY(attention)
    layer.weight.data = layer.weight.data.unflatten(0, (attention.heads, -1)).flip(0).flatten(0, 1).contiguous()
    return layer


def output_without_value_bias(attention: object) -> nn.Linear:
    layer = REAL_OUTPUT(attention)
    layer.bias.data = attention.out.bias.data.clone()
    return layer


def output_heads_reversed(attention: object) -> nn.Linear:
    layer = REAL_OUTPUT(attention)
    layer.weight.data = layer.weight.data.unflatten(1, (attention.heads, -1)).flip(1).flatten(1).contiguous()
    return layer


REAL_QUERY, REAL_OUTPUT = absorb._absorbed_query, absorb._absorbed_output


@pytest.mark.parametrize("wrong", [without_scale, transposed, without_bias, heads_reversed], ids=lambda f: f.__name__)
def test_a_wrong_absorbed_query_is_seen(wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absorb, "_absorbed_query", wrong)
    folded = fold_batchnorm(network(SMALL))
    assert error(folded, absorb_attention(folded), SMALL) > 1e-6


@pytest.mark.parametrize("wrong", [output_without_value_bias, output_heads_reversed], ids=lambda f: f.__name__)
def test_a_wrong_absorbed_output_is_seen(wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absorb, "_absorbed_output", wrong)
    folded = fold_batchnorm(network(SMALL))
    assert error(folded, absorb_attention(folded), SMALL) > 1e-6


def test_a_wrong_row_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.rewrites.prune.FirstRow.forward", lambda self, x: x[:, 1:2])
    assert error(network(SMALL), cls_only(network(SMALL)), SMALL) > 1e-6


BIASES = ("qkv.bias", "query.bias", "query_bias", "value.bias", "out.bias")


def attention_biases(model: nn.Module) -> set[str]:
    return {name.removeprefix("blocks.") for name in model.state_dict() if name.endswith(BIASES)}


def test_no_bias_is_left_in_the_attention_of_a_folded_vitbn() -> None:
    for rewritten in (fold_batchnorm(network(SMALL)), apply(network(SMALL), ALL[:3], ())[0]):
        assert attention_biases(rewritten)
        carried = carry_biases(rewritten)
        assert not attention_biases(carried)
        assert carried.get_submodule("blocks.1.ffn.linear2").bias is None
        assert carried.get_submodule("blocks.0.ffn.linear2").bias is not None
        assert error(rewritten, carried, SMALL) < 1e-10


def test_a_layernorm_takes_the_bias_of_the_query_and_keeps_that_of_the_output() -> None:
    config = replace(SMALL, model="vit")
    for model in (network(config), fold_batchnorm(network(config))):
        model.get_submodule("blocks.0.attention.qkv").bias = nn.Parameter(
            model.get_submodule("blocks.0.attention.qkv").weight.data @ torch.linspace(-1, 1, 16).double()
        )
        carried = carry_biases(model)
        assert error(model, carried, config) < 1e-10
        assert attention_biases(carried) == {"0.attention.out.bias", "1.attention.out.bias"}


def test_a_query_bias_that_no_shift_yields_stays() -> None:
    config = replace(SMALL, qkv_bias=True)
    carried = carry_biases(fold_batchnorm(network(config)))
    assert isinstance(carried.get_submodule("blocks.0").attention, QueryBiasAttention)
    assert attention_biases(carried) == {"0.attention.query_bias", "1.attention.query_bias"}
    assert error(network(config), carried, config) < 1e-10


def test_a_shift_too_large_for_float32_is_not_made() -> None:
    model = fold_batchnorm(network(SMALL))
    qkv = model.get_submodule("blocks.0.attention.qkv")
    qkv.bias.data = qkv.weight.data @ torch.full((16,), 101.0).double()
    carried = carry_biases(model)
    assert attention_biases(carried) == {"0.attention.query_bias"}
    assert error(model, carried, SMALL) < 1e-10


def test_where_no_bias_costs_anything_none_is_carried() -> None:
    with pytest.raises(DoesNotApply, match="there is none that costs anything"):
        carry_biases(carry_biases(network(replace(SMALL, model="vit", heads=1))))
    with pytest.raises(DoesNotApply, match="CNN: there is no attention"):
        carry_biases(network(ModelConfig(model="cnn")))


@pytest.mark.parametrize(
    ("part", "model"),
    [
        *(("_of_equal_tokens", model) for model in ("vitbn", "vitbnffn", "vit")),
        *(("_shift_instead_of_bias", model) for model in ("vitbn", "vitbnffn", "vit")),
        ("_shift_rows", "vitbn"),  # the residual streams of the others begin as they are
    ],
)
def test_a_wrong_shift_is_seen(part: str, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = getattr(biases, part)

    def wrong(*arguments: object) -> object:
        if part == "_shift_rows":
            return None
        value = real(*arguments)
        return None if value is None else value * 1.001

    monkeypatch.setattr(biases, part, wrong)
    folded = fold_batchnorm(network(replace(SMALL, model=model)))
    assert error(folded, carry_biases(folded), SMALL) > 1e-6


ONE_BLOCK = replace(SMALL, depth=1)


def without_embedding(config: ModelConfig) -> tuple[nn.Module, nn.Module]:
    """The network of one block with every rewrite before `absorb_embedding`, and after it."""
    before, _ = apply(network(config), ALL[: ALL.index(absorb_embedding)], ())
    return before, absorb_embedding(before)


@pytest.mark.parametrize("config", [ONE_BLOCK, replace(ONE_BLOCK, channels=3, image_size=(6, 8), patch_size=(3, 2))])
def test_the_patches_are_keys_and_values_where_the_query_is_constant(config: ModelConfig) -> None:
    before, after = without_embedding(replace(config, dim=32, dim_head=32))
    x = pixels(config)
    assert (answer(before, x) - answer(after, x)).abs().max() < 1e-10
    assert isinstance(after.get_submodule("blocks.0"), PatchBlock)
    assert macs_per_image(after) < macs_per_image(before)


def test_an_output_bias_goes_into_the_table_of_outputs() -> None:
    before = cls_only(absorb_attention(fold_batchnorm(network(replace(ONE_BLOCK, dim=64, dim_head=64)))))
    assert before.get_submodule("blocks.0.attention.out").bias is not None
    assert error(before, absorb_embedding(before), ONE_BLOCK) < 1e-10


@pytest.mark.parametrize("part", ["query", "scores", "out", "outputs"])
def test_a_wrong_table_of_patches_is_seen(part: str) -> None:
    before, after = without_embedding(replace(ONE_BLOCK, dim=64, dim_head=64))
    block = after.get_submodule("blocks.0")
    tensor = getattr(block, part)
    tensor = tensor if isinstance(tensor, torch.Tensor) else tensor.weight.data
    tensor.copy_(tensor.roll(1, -1))
    x = pixels(ONE_BLOCK)
    assert (answer(before, x) - answer(after, x)).abs().max() > 1e-6


def test_an_embedding_that_is_not_absorbed_says_why() -> None:
    for config in (SMALL, replace(ONE_BLOCK, pool="mean"), replace(ONE_BLOCK, model="vit")):
        _, steps = apply(network(config), ALL, ())
        assert "expected the only block" in {step.rewrite: step for step in steps}["absorb_embedding"].left_out
    many_pixels = replace(ONE_BLOCK, patch_size=(14, 14))
    with pytest.raises(DoesNotApply, match=r"absorbing costs 20,064 multiplications an image instead of 15,136"):
        without_embedding(many_pixels)


@pytest.mark.parametrize("model", ["vit", "vitbn"])
def test_the_order_of_the_pixels_of_a_patch(model: str) -> None:
    config = replace(SMALL, model=model, channels=3, patch_size=(7, 4))
    folded = fold_batchnorm(network(config))
    cut = cut_by_channel(folded)
    assert error(folded, cut, config) < 1e-10
    cut.get_parameter("patch_embedding.weight").data = folded.get_parameter("patch_embedding.weight").data
    assert error(folded, cut, config) > 1e-6


def test_a_cut_that_stays_says_why() -> None:
    folded = fold_batchnorm(network(SMALL))
    for model, reason in (
        (network(SMALL), "patch_norm: expected a LayerNorm without gamma and beta, or none, found TokenBatchNorm"),
        (without_embedding(ModelConfig(depth=1))[1], "patch_embedding: expected Linear, found Identity"),
        (cut_by_channel(folded), r"to_patches: expected \(p1 p2 c\), found b c"),
        (network(ModelConfig(model="cnn")), "CNN: there are no patches"),
    ):
        with pytest.raises(DoesNotApply, match=reason):
            cut_by_channel(model)


def optimized(config: ModelConfig) -> Exported:
    model = network(config).float()
    return export(Checkpoint(Path("random.safetensors"), model, config, "0" * 64), ALL)


@pytest.mark.parametrize(
    ("model", "depth"), [*((model, 1) for model in FOLD), ("vit", 3), ("vitbnffn", 3), ("vitbn", 3)]
)
def test_nodes_of_the_optimized_graph(model: str, depth: int) -> None:
    graph = onnx.load_from_string(optimized(ModelConfig(model=model, depth=depth)).onnx).graph
    counts = Counter(node.op_type for node in graph.node)
    assert counts["BatchNormalization"] == counts["Split"] == counts["Einsum"] == 0
    assert counts["Transpose"] == 1 + depth  # the patches, and the tokens of each block
    assert counts["Cast"] == 1
    # Around the patch embedding, before attention and FFN, at the end; ViTBNFFN has none before its FFN.
    assert counts["LayerNormalization"] == {"vit": 3 + 2 * depth, "vitbnffn": 3 + depth}.get(model, 0)
    constants = {tensor.name for tensor in graph.initializer}
    assert not [node.op_type for node in graph.node if set(node.input) <= constants]
    assert counts["Shape"] == counts["Concat"] == counts["Expand"] == counts["Constant"] == 0


@pytest.mark.parametrize(("depth", "additions"), [(1, 3), (6, 24)])
def test_additions_that_are_left_of_vitbn(depth: int, additions: int) -> None:
    """Positions; then a block two residuals and the two biases of the FFN, the last block its first alone."""
    graph = onnx.load_from_string(optimized(ModelConfig(depth=depth)).onnx).graph
    assert sum(node.op_type == "Add" for node in graph.node) == additions


@pytest.mark.parametrize("model", ["vit", "vitbnffn", "vitbn"])
@pytest.mark.parametrize("bias", [False, True])
def test_fused_graphs_of_a_model_with_and_without_bias(model: str, bias: bool) -> None:
    config = ModelConfig(model=model, depth=1, qkv_bias=bias)
    exported = export(Checkpoint(Path("x"), network(config).float(), config, "0"), FUSE)
    assert "carry_biases" in exported.manifest["rewrites"]


@pytest.mark.parametrize("depth", [1, 6])
def test_the_published_checkpoint_survives_all_rewrites(reference_dir: Path, depth: int) -> None:
    if depth == 6:
        with pytest.warns(UserWarning, match="never saw a batch"):
            checkpoint = load(reference_dir / "vitbn.pth", depth)
    else:
        checkpoint = load(reference_dir / "vitbn.pth", depth)
    exported = export(checkpoint, ALL)
    assert exported.proofs[0].max_abs_error < 1e-10
    assert exported.proofs[1].max_abs_error < 1e-4


def test_a_step_tells_where_and_how_much() -> None:
    _, steps = apply(network(ModelConfig(depth=2)), ALL, ())
    by_name: dict[str, Step] = {step.rewrite: step for step in steps}
    assert by_name["absorb_attention"].layers == ("blocks.0.attention", "blocks.1.attention")
    assert by_name["cls_only"].layers == ("blocks.1",)
    assert "blocks.0.ffn.hidden_norm" in by_name["fold_batchnorm"].layers
    assert "blocks.0.attention.query" in by_name["carry_biases"].layers
    assert by_name["fold_input_scale"].layers == ("patch_embedding",)


def test_the_served_network_reads_bytes() -> None:
    rewritten, _ = apply(network(SMALL), ALL, ())
    x = pixels(SMALL)
    served = Served(rewritten, scale_folded=True)
    assert (answer(served, x.to(torch.uint8)) - answer(network(SMALL), x / 255)).abs().max() < 1e-10
