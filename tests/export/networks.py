"""Networks of any geometry with norms far from the identity, and their comparison."""

from collections.abc import Sequence

import random_networks
import torch
from torch import nn

from export.rewrites.errors import DoesNotApply
from export.rewrites.fold import fold_input_scale
from export.rewrites.pipeline import Rewrite
from models.config import TRANSFORMER_NAMES, ModelConfig

NEVER_FOLD = ("vit-dtn", "vit-minmax", "vit-zscore")
FOLD = [name for name in TRANSFORMER_NAMES if name not in NEVER_FOLD]
SMALL = ModelConfig(depth=2, dim=16, heads=4, dim_head=16, mlp_dim=24)


def network(config: ModelConfig, seed: int = 0) -> nn.Module:
    return random_networks.network(config, seed).double()


def pixels(config: ModelConfig) -> torch.Tensor:
    return torch.randint(0, 256, (3, *config.input_shape), generator=torch.Generator().manual_seed(1)).double()


def answer(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model(x)


def error(model: nn.Module, rewritten: nn.Module, config: ModelConfig) -> float:
    x = pixels(config) / 255
    return float((answer(model, x) - answer(rewritten, x)).abs().max())


def rewritten_in_turn(
    model: nn.Module, x: torch.Tensor, rewrites: Sequence[Rewrite], bound: float
) -> tuple[nn.Module, bool]:
    """The rewritten network, and whether it scales pixels itself.

    After each rewrite the logits of `x`, pixels of 0 to 255, stay within `bound`.
    """
    expected = answer(model, x / 255)
    rewritten, scaled = model, False
    for rewrite in rewrites:
        try:
            rewritten = rewrite(rewritten)
        except DoesNotApply:
            continue
        scaled = scaled or rewrite is fold_input_scale
        assert (answer(rewritten, x if scaled else x / 255) - expected).abs().max() <= bound, rewrite.__name__
    return rewritten, scaled
