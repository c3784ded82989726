"""A picture of lines as data: panels side by side with one scale."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

from models.config import ModelName
from models.plots.figures import (
    NAMES,
    accuracy_axis,
    from_zero,
    legend,
    plain_ticks,
    row_of_panels,
    style,
    whole_numbers,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCALES = {"accuracy": accuracy_axis, "log": plain_ticks, "from zero": from_zero}


@dataclass(frozen=True)
class Line:
    """`low` and `high`: the range of the seeds; `hollow`: white markers; `published`: crosses without a line."""

    model: ModelName
    xs: Sequence[float]
    ys: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    label: str = ""
    hollow: bool = False
    published: bool = False


def line(
    model: ModelName,
    xs: Sequence[float],
    seeds: Sequence[Sequence[float]],
    label: str = "",
    hollow: bool = False,
) -> Line:
    """The mean of the seeds at each x, and their range if there are several."""
    low, high = ([f(values) for values in seeds] if any(len(v) > 1 for v in seeds) else [] for f in (min, max))
    return Line(model, xs, [*map(mean, seeds)], low, high, label, hollow)


@dataclass(frozen=True)
class Picture:
    """`panels`: title -> lines; `scale`: a name in SCALES."""

    title: str
    footnote: str
    x: str
    y: str
    scale: str
    panels: Mapping[str, Sequence[Line]]

    def digest(self) -> str:
        """Of all that is drawn: a PNG that carries it needs no drawing anew."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def draw(self) -> Figure:
        figure, row = row_of_panels(self.title, self.footnote, list(self.panels), self.x, self.y)
        looks: dict[str, dict[str, Any]] = {}
        for axes, lines in zip(row, self.panels.values(), strict=True):
            for line in lines:
                label, look = _look(line)
                looks.setdefault(label, look)
                axes.plot(line.xs, line.ys, **look)
                if line.low:
                    axes.fill_between(line.xs, line.low, line.high, color=look["color"], alpha=0.15, linewidth=0)
            whole_numbers(axes)
        for label, look in looks.items():  # the legend shows the lines of all panels
            row[0].plot([], [], **look, label=label)
        SCALES[self.scale](row[0])
        legend(figure, row[0])
        return figure


def _look(line: Line) -> tuple[str, dict[str, Any]]:
    if line.published:
        cross = {"marker": "x", "markersize": 9, "markeredgewidth": 2.0, "linestyle": "none"}
        return f"{NAMES[line.model]}, published", style(line.model) | cross
    hollow = {"markerfacecolor": "#ffffff"} if line.hollow else {}
    return line.label or NAMES[line.model], style(line.model) | hollow
