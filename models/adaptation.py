"""BatchNorm's statistics from unlabelled images of a new source; the weights stay.

In: a network and uint8 images (n, C, H, W). Out: a copy of the network with the statistics of these images.
Li et al., "Revisiting Batch Normalization For Practical Domain Adaptation", 2016 (AdaBN).
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from models.config import INPUT_SCALE

Statistic = Literal["mean", "variance"]
BOTH: tuple[Statistic, ...] = ("mean", "variance")


class AdaptationError(Exception):
    """A network without BatchNorm; the message says so."""


def adapt(model: nn.Module, images: Tensor, statistics: tuple[Statistic, ...] = BOTH) -> nn.Module:
    """The copy, in eval mode. All images are a single batch; `statistics` are taken from it.

    A layer sees the images through layers that already normalise with the batch. Raises AdaptationError.
    """
    adapted = copy.deepcopy(model).eval()
    norms = [module for module in adapted.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    if not norms:
        raise AdaptationError(f"expected a network with BatchNorm, found {type(model).__name__} without")
    before = [(norm.get_buffer("running_mean").clone(), norm.get_buffer("running_var").clone()) for norm in norms]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0  # the batch's statistics alone
    with torch.no_grad():
        adapted(images * INPUT_SCALE)
    for norm, (mean, variance), momentum in zip(norms, before, momenta, strict=True):
        norm.momentum = momentum
        if "mean" not in statistics:
            norm.get_buffer("running_mean").copy_(mean)
        if "variance" not in statistics:
            norm.get_buffer("running_var").copy_(variance)
    return adapted.eval()
