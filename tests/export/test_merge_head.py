from dataclasses import replace

import pytest
import torch
from networks import SMALL, answer, network, pixels
from torch import nn

from export.rewrites.errors import DoesNotApply
from export.rewrites.head import merge_head
from export.rewrites.pipeline import ALL, apply
from models.config import ModelConfig
from models.macs import macs_per_image

CONFIGS = [
    SMALL,  # the row of a block of tokens
    replace(SMALL, depth=1, dim=32, dim_head=32),  # patches as keys and values
    replace(SMALL, class_attention=(3, 5)),
    replace(SMALL, num_classes=15, labels=tuple(map(str, range(15)))),
]


def merged(config: ModelConfig) -> tuple[nn.Module, nn.Module]:
    before, _ = apply(network(config), ALL[: ALL.index(merge_head)], ())
    return before, merge_head(before)


@pytest.mark.parametrize("config", CONFIGS, ids=["row", "patches", "late", "as many classes but one"])
def test_the_logits_come_from_the_hidden_features(config: ModelConfig) -> None:
    before, after = merged(config)
    x = pixels(config)
    assert (answer(before, x) - answer(after, x)).abs().max() < 1e-10
    saved = config.mlp_dim * (config.dim - config.num_classes)
    assert macs_per_image(before) - macs_per_image(after) == saved > 0


@pytest.mark.parametrize("part", ["ffn.linear2.weight", "residual.weight", "residual.bias"])
def test_a_wrong_merged_weight_is_seen(part: str) -> None:
    before, after = merged(SMALL)
    tensor = after.get_submodule("blocks.1").state_dict()[part]
    tensor.copy_(tensor.roll(1, 0))
    assert (answer(before, pixels(SMALL)) - answer(after, pixels(SMALL))).abs().max() > 1e-6


def test_a_bias_of_the_ffn_goes_into_that_of_the_logits() -> None:
    before, _ = apply(network(SMALL), ALL[: ALL.index(merge_head)], ())
    before.get_submodule("blocks.1.ffn.linear2").register_parameter("bias", nn.Parameter(torch.rand(16).double()))
    assert (answer(before, pixels(SMALL)) - answer(merge_head(before), pixels(SMALL))).abs().max() < 1e-10


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (replace(SMALL, pool="mean"), "blocks.1: expected the CLS row alone, found every row"),
        (replace(SMALL, model="vit"), "norm: expected none before the head, found LayerNorm"),
        (replace(SMALL, dim=10), "head: expected fewer classes than the 10 features of a token, found 10"),
        (ModelConfig(model="cnn"), "CNN: there is no FFN"),
    ],
)
def test_a_head_that_stays_says_why(config: ModelConfig, reason: str) -> None:
    before, _ = apply(network(config), ALL[: ALL.index(merge_head)], ())
    with pytest.raises(DoesNotApply, match=reason):
        merge_head(before)
