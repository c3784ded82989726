"""How time grows with the work: the same contestants at many batch sizes, depths and widths.

In: models, runtimes and options. Out: by axis, the rows of `benchmarks.measuring`, each point from one interleaved run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.latency_table import batch_table
from benchmarks.measuring import Missing, Options, Row, Wanted, measure, prepare
from benchmarks.runtimes import Precision
from models.config import ModelConfig, ModelName

BATCHES = (1, 4, 16, 64, 256, 1024, 5000)
DEPTHS = (1, 2, 3, 6, 9, 12)
DIMS = (32, 64, 128, 256)
AXIS_BATCH = 64  # images a call on the axes of depth and width

Axes = dict[str, list[Row]]


@dataclass(frozen=True)
class Contest:
    """What is swept: everything at `depth` but on the axis of depths."""

    models: tuple[ModelName, ...]
    runtimes: tuple[str, ...]
    precisions: tuple[Precision, ...]
    depth: int

    def wanted(self, config: ModelConfig) -> list[Wanted]:
        """All contestants, in the geometry of `config`; networks without a depth once, in the published one alone."""
        published = config.dim == ModelConfig.dim and config.depth == self.depth
        configs = [replace(config, model=model) for model in self.models]
        return [
            (config, runtime, precision)
            for config in configs
            if config.is_transformer or published
            for runtime in self.runtimes
            for precision in self.precisions
        ]


def run(
    contest: Contest,
    batches: Sequence[int],
    options: Options,
    limits: Mapping[str, Any],
    show: Callable[[str], None],
    missing: Missing,
) -> Axes:
    """Measures every point of the three axes, `options.seconds` for all together; raises EquivalenceError.

    `show` gets the table of each point, and `missing` what is not measured.
    """
    batches = batches or BATCHES
    share = replace(options, seconds=options.seconds / (len(batches) + len(DEPTHS) + len(DIMS)))
    middle = ModelConfig(depth=contest.depth)
    axes: Axes = {"batch": [], "depth": [], "dim": []}
    contestants = prepare(contest.wanted(middle), batches, options, missing)
    for batch in batches:
        axes["batch"] += (found := measure(contestants, batch, share, limits, f"batch {batch}", missing))
        show(batch_table(found))
    points = [("depth", replace(middle, depth=depth)) for depth in DEPTHS]
    points += [("dim", replace(middle, dim=dim)) for dim in DIMS]
    for axis, config in points:
        contestants = prepare(contest.wanted(config), [AXIS_BATCH], options, missing)
        found = measure(contestants, AXIS_BATCH, share, limits, f"{axis} {getattr(config, axis)}", missing)
        axes[axis] += found
        show(f"dim {config.dim}, {batch_table(found)}")
    return axes
