import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from networks import FOLD, NEVER_FOLD, SMALL, answer, error, network, pixels
from torch import nn

from export.graph import Served, export
from export.rewrites.absorb import AbsorbedAttention, Constant, absorb_attention, absorption_macs
from export.rewrites.biases import carry_biases
from export.rewrites.errors import DoesNotApply, RewriteError
from export.rewrites.fold import fold_batchnorm
from export.rewrites.pipeline import ALL, Step, apply
from export.rewrites.prune import cls_only
from models.checkpoint import Checkpoint
from models.config import ModelConfig
from models.costs import absorbed_attention_macs, attention_macs
from models.macs import macs_per_image
from models.norms import TokenNorm, anneal

NARROW = ModelConfig(depth=1, heads=32, dim_head=16, mlp_dim=256)
LIKE_VITBN = [name for name in FOLD if name not in ("vit", "vitbnffn")]  # without norms


@pytest.mark.slow
@pytest.mark.parametrize("model", FOLD)
@pytest.mark.parametrize(("depth", "before", "after"), [(6, 16_866_944, 8_593_024), (1, 2_853_504, 63_360)])
def test_the_work_that_is_left(model: str, depth: int, before: int, after: int) -> None:
    config = ModelConfig(model=model, depth=depth)
    if model not in LIKE_VITBN:  # LayerNorms stay
        after = {6: 8_593_024, 1: 117_376}[depth]
    model = network(config)
    rewritten, steps = apply(model, ALL, ())
    assert macs_per_image(model) == before
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
        with pytest.raises(RewriteError, match=r"patch_norm: expected no LayerNorm .* of 0\.688; train to the end"):
            export(Checkpoint(Path("x"), model, model.config, "0"), rewrites)


def test_each_rewrite_alone() -> None:
    for rewrite in (absorb_attention, cls_only):
        assert error(network(SMALL), rewrite(network(SMALL)), SMALL) < 1e-10
    folded = fold_batchnorm(network(SMALL))
    assert error(folded, carry_biases(folded), SMALL) < 1e-10


def test_the_callers_model_is_left_alone() -> None:
    model = network(SMALL)
    before = copy.deepcopy(model.state_dict())
    apply(model, ALL, ())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert isinstance(model.get_submodule("blocks.1").attention, type(model.get_submodule("blocks.0").attention))


def test_the_query_of_a_network_of_one_block_is_constant() -> None:
    attention = absorb_attention(cls_only(network(replace(SMALL, depth=1)))).get_submodule("blocks.0.attention")
    assert attention.rows == 1
    assert isinstance(attention.query, Constant)


def test_absorption_that_does_not_pay_is_left_out_and_says_why() -> None:
    config = ModelConfig(depth=1, dim=128, heads=8, dim_head=16, pool="mean")
    with pytest.raises(DoesNotApply, match=r"absorbing costs 5,048,320 multiplications .* instead of 1,188,096"):
        absorb_attention(network(config))
    rewritten, steps = apply(network(config), ALL, ())
    assert steps[2].left_out
    assert not any(isinstance(module, AbsorbedAttention) for module in rewritten.modules())
    with pytest.raises(DoesNotApply):
        apply(network(config), ALL, (absorb_attention,))


@pytest.mark.parametrize(
    ("config", "macs"),
    [
        (NARROW, 218_752),
        (replace(NARROW, model="vit"), 284_288),
        (replace(NARROW, depth=2), 3_496_576),
        (replace(NARROW, depth=2, qkv_bias=True), 3_496_576),
    ],
)
def test_the_last_block_is_absorbed_at_the_cost_of_its_row(config: ModelConfig, macs: int) -> None:
    model = network(config)
    rewritten, steps = apply(model, ALL, ())
    by_name = {step.rewrite: step for step in steps}
    assert by_name["absorb_attention"].layers == (f"blocks.{config.depth - 1}.attention",)
    assert macs_per_image(rewritten) == macs
    x = pixels(config)
    scaled = not by_name["fold_input_scale"].left_out
    assert (answer(rewritten, x if scaled else x / 255) - answer(model, x / 255)).abs().max() < 1e-10


def test_a_row_of_few_features_a_head_is_left_as_it_is() -> None:
    """Keys and values together are smaller than the tokens."""
    config = replace(SMALL, dim=64, heads=8, dim_head=1)
    cut = cls_only(network(config))
    with pytest.raises(DoesNotApply, match="absorbing costs"):
        absorb_attention(cut)
    before, after = absorption_macs(cut.get_submodule("blocks.1").attention, 17, constant=False)
    assert after >= before


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("dim_head", [16, 64])
def test_the_cost_of_a_row_is_what_pytorch_counts(depth: int, dim_head: int) -> None:
    cut = cls_only(network(replace(SMALL, dim=32, depth=depth, dim_head=dim_head)))
    absorbed = absorb_attention(cut)
    before, after = absorption_macs(cut.get_submodule(f"blocks.{depth - 1}").attention, 17, depth == 1)
    full = depth - 1 if dim_head == 64 else 0
    saved = full * (attention_macs(17, 32, 4, dim_head) - absorbed_attention_macs(17, 32, 4))
    assert macs_per_image(cut) - macs_per_image(absorbed) == before - after + saved


def test_mean_pooling_reads_every_row() -> None:
    with pytest.raises(DoesNotApply, match="head: expected pool 'cls', found 'mean'"):
        cls_only(network(replace(SMALL, pool="mean")))


def test_rewrites_in_the_wrong_order_or_twice_are_refused() -> None:
    with pytest.raises(RewriteError, match=r"blocks\.1\.attention: expected Attention, found AbsorbedAttention"):
        cls_only(absorb_attention(network(SMALL)))
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


def test_a_step_tells_where_and_how_much() -> None:
    _, steps = apply(network(ModelConfig(depth=2)), ALL, ())
    by_name: dict[str, Step] = {step.rewrite: step for step in steps}
    assert by_name["absorb_attention"].layers == ("blocks.0.attention", "blocks.1.attention")
    assert by_name["cls_only"].layers == ("blocks.1.attention",)
    assert "blocks.0.ffn.hidden_norm" in by_name["fold_batchnorm"].layers
    assert "blocks.0.attention.query" in by_name["carry_biases"].layers
    assert by_name["fold_input_scale"].layers == ("patch_embedding",)


def test_the_served_network_reads_bytes() -> None:
    rewritten, _ = apply(network(SMALL), ALL, ())
    x = pixels(SMALL)
    served = Served(rewritten, scale_folded=True)
    assert (answer(served, x.to(torch.uint8)) - answer(network(SMALL), x / 255)).abs().max() < 1e-10
