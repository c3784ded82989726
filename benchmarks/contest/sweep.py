"""The same contestants at many batch sizes, depths and widths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.contest.contestants import Missing, Options, build
from benchmarks.contest.measuring import Limits, Row, measure
from benchmarks.contest.runtimes import Entry, Precision
from models.config import ModelConfig, ModelName

BATCHES = (1, 4, 16, 64, 256, 1024, 5000)
DEPTHS = (1, 2, 3, 6, 9, 12)
DIMS = (32, 64, 128, 256)
AXIS_BATCH = 64  # images per call on the axes of depth and width

Axis = Literal["batch", "depth", "dim"]


@dataclass(frozen=True)
class Swept:
    """The axes of batch and width use `depth`."""

    models: tuple[ModelName, ...]
    runtimes: tuple[str, ...]
    precisions: tuple[Precision, ...]
    depth: int

    def entries(self, config: ModelConfig) -> list[Entry]:
        """Networks without depth only in the published geometry."""
        published = config.dim == ModelConfig.dim and config.depth == self.depth
        configs = [replace(config, model=model) for model in self.models]
        return [
            Entry(config, runtime, precision)
            for config in configs
            if config.is_transformer or published
            for runtime in self.runtimes
            for precision in self.precisions
        ]


def run(
    swept: Swept,
    batches: Sequence[int],
    options: Options,
    limits: Limits,
    missing: Missing,
    add: Callable[[Axis, list[Row]], None],
) -> None:
    batches = batches or BATCHES
    share = replace(options, seconds=options.seconds / (len(batches) + len(DEPTHS) + len(DIMS)))
    middle = ModelConfig(depth=swept.depth)
    contestants = build(swept.entries(middle), batches, options, missing)
    for batch in batches if contestants else ():
        measure(contestants, batch, share, limits, f"batch {batch}", missing, lambda rows: add("batch", rows))
    del contestants  # it holds the memory of the largest batch
    for depth in DEPTHS:
        contestants = build(swept.entries(replace(middle, depth=depth)), [AXIS_BATCH], options, missing)
        if contestants:
            title = f"depth {depth}"
            measure(contestants, AXIS_BATCH, share, limits, title, missing, lambda rows: add("depth", rows))
    for dim in DIMS:
        contestants = build(swept.entries(replace(middle, dim=dim)), [AXIS_BATCH], options, missing)
        if contestants:
            measure(contestants, AXIS_BATCH, share, limits, f"dim {dim}", missing, lambda rows: add("dim", rows))
