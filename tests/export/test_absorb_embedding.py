from dataclasses import replace

import pytest
import torch
from networks import SMALL, answer, error, network, pixels
from torch import nn

from export.rewrites.absorb import absorb_attention
from export.rewrites.embedding import PatchBlock, absorb_embedding
from export.rewrites.errors import DoesNotApply
from export.rewrites.fold import fold_batchnorm
from export.rewrites.pipeline import ALL, apply
from export.rewrites.prune import cls_only
from models.config import ModelConfig
from models.macs import macs_per_image

ONE_BLOCK = replace(SMALL, depth=1)


def without_embedding(config: ModelConfig) -> tuple[nn.Module, nn.Module]:
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
    before = absorb_attention(cls_only(fold_batchnorm(network(replace(ONE_BLOCK, dim=64, dim_head=64)))))
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
