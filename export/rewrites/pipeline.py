"""A sequence of rewrites: float64 network -> rewritten network and `Step`s."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from export.rewrites.absorb import absorb_attention
from export.rewrites.biases import carry_biases
from export.rewrites.embedding import absorb_embedding
from export.rewrites.errors import DoesNotApply
from export.rewrites.fold import fold_batchnorm, fold_input_scale
from export.rewrites.fuse import fuse_attention
from export.rewrites.prune import cls_only
from models.macs import macs_per_image

Rewrite = Callable[[nn.Module], nn.Module]

FUSE: tuple[Rewrite, ...] = (fold_batchnorm, carry_biases, fold_input_scale)
ALL: tuple[Rewrite, ...] = (
    fold_batchnorm,
    cls_only,
    absorb_attention,
    carry_biases,
    fold_input_scale,
    absorb_embedding,
)
ORDER: tuple[Rewrite, ...] = (*ALL, fuse_attention)  # fuse_attention changes only the form; CPUs gain nothing


@dataclass(frozen=True)
class Step:
    """The changed layers and an image's multiply-accumulates after them, or why it is left out."""

    rewrite: str
    layers: tuple[str, ...]
    macs: int
    left_out: str | None = None


def apply(model: nn.Module, rewrites: Sequence[Rewrite], required: Sequence[Rewrite]) -> tuple[nn.Module, list[Step]]:
    """Raises RewriteError for an inexact rewrite, DoesNotApply if a `required` rewrite does not apply."""
    steps, macs = [], macs_per_image(model)
    for rewrite in (rewrite for rewrite in ORDER if rewrite in rewrites):
        try:
            rewritten = rewrite(model)
        except DoesNotApply as reason:
            if rewrite in required:
                raise
            steps.append(Step(rewrite.__name__, (), macs, str(reason)))
            continue
        macs = macs_per_image(rewritten)
        steps.append(Step(rewrite.__name__, tuple(changed_layers(model, rewritten)), macs))
        model = rewritten
    return model, steps


def changed_layers(before: nn.Module, after: nn.Module) -> Iterator[str]:
    """The outermost layers whose type or rows changed, else those whose weights changed."""
    old = dict(before.named_modules())
    replaced: list[str] = []
    for name, module in after.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in replaced)
        if not inside and _kind(old.get(name)) != _kind(module):
            replaced.append(name)
    yield from replaced or (name for name, module in after.named_modules() if _weights_differ(old[name], module))


def _kind(module: nn.Module | None) -> tuple[type, int | None]:
    rows = getattr(module, "rows", None)
    return type(module), rows if isinstance(rows, int) else None


def _weights_differ(old: nn.Module, new: nn.Module) -> bool:
    before, after = (dict(module.named_parameters(recurse=False)) for module in (old, new))
    return before.keys() != after.keys() or any(not torch.equal(before[name], after[name]) for name in before)
