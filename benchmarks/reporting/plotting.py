"""Plots, and pictures of lines as data. A model keeps its colour (Okabe and Ito's, for the colour-blind) and marker."""

from __future__ import annotations

import hashlib
import io
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

from models.networks.config import ModelName

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

DPI = 150
LETTERS_PER_INCH = 18  # of a footnote
PANELS_IN_A_ROW = 3  # more would shrink the letters, since pages have one width


class Look(NamedTuple):
    name: str
    colour: str = "#000000"
    dash: Any = "-"
    marker: str = "o"


LOOKS: dict[ModelName, Look] = {
    "vit": Look("ViT", "#000000", "-", "o"),
    "vitbnffn": Look("ViTBNFFN", "#E69F00", (0, (5, 2)), "s"),
    "vitbn": Look("ViTBN", "#0072B2", (0, (5, 1.5, 1, 1.5)), "^"),
    "vit-repbn": Look("RepBN", "#D55E00", (0, (1, 1)), "v"),
    "vit-prepbn": Look("progressive RepBN", "#CC79A7", "-", "P"),
    "vit-un": Look("simplified unified norm", "#009E73", (0, (4, 1)), "D"),
    "vit-dfn": Look("dynamic feature norm", "#56B4E9", (0, (2, 1)), "X"),
    "vit-dtn": Look("dynamic token norm", "#7F4F24", (0, (5, 2)), "p"),
    "vit-minmax": Look("min-max of a token", "#7B3294", (0, (1, 1)), "<"),
    "vit-zscore": Look("z-score of a token", "#7A7A7A", (0, (5, 1.5, 1, 1.5)), "*"),
    "cnn": Look("CNN", "#009E73", (0, (1, 1.5)), "D"),
    "dnn": Look("DNN", "#000000", "-", "o"),
    "dnnbn": Look("DNNBN", "#D55E00", (0, (5, 2)), "s"),
}

# Percent, in order of preference.
ACCURACY_TICKS = (99, 90, 99.9, 99.5, 95, 50, 98, 99.7, 80, 99.8, 97, 20, 70, 99.3, 10, 93, 30, 40, 60, 85, 98.5, 99.6)


def look_of(model: ModelName) -> Look:
    return LOOKS.get(model, Look(model))


def style(model: ModelName) -> dict[str, Any]:
    _, colour, dash, marker = look_of(model)
    return {"color": colour, "linestyle": dash, "marker": marker, "markersize": 5, "linewidth": 1.6}


def row_of_panels(
    title: str, footnote: str, titles: Sequence[str], x: str, y: str, size: tuple[float, float] | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each title. Labels x and y include units."""
    from matplotlib.figure import Figure

    columns = min(len(titles), PANELS_IN_A_ROW)
    rows = -(-len(titles) // columns)
    inches = size or (max(8.0, 2.2 + 2.9 * columns), 0.4 + 3.5 * rows)
    figure = Figure(figsize=inches, layout="constrained", dpi=DPI)
    every = figure.subplots(rows, columns, sharex=size is None, sharey=True, squeeze=False)
    row = every.ravel()[: len(titles)]
    for empty in every.ravel()[len(titles) :]:
        empty.set_axis_off()
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    letters = int(LETTERS_PER_INCH * figure.get_figwidth())
    footnote = "\n".join(textwrap.fill(line, letters) for line in footnote.splitlines())
    figure.supxlabel(footnote, x=0.01, ha="left", fontsize=7.5, color="#555555")
    for axes, name in zip(row, titles, strict=True):
        axes.set_title(name, fontsize=10)
        axes.set_xlabel(x)
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    for first in every[:, 0]:
        first.set_ylabel(y)
    return figure, list(row)


def legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) <= 4:
        figure.legend(handles, labels, loc="outside upper right", ncols=4, frameon=False)
    else:
        figure.legend(handles, labels, loc="outside right center", frameon=False)


def whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))


def accuracy_axis(axes: Axes) -> None:
    """Gives 90 to 99 % as much room as 99 to 99.9."""
    import numpy as np
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    def spread(percent: Any) -> NDArray[np.float64]:
        place: NDArray[np.float64] = -np.log10(np.maximum(100 - np.asarray(percent), 0.01))
        return place

    def back(place: Any) -> NDArray[np.float64]:
        percent: NDArray[np.float64] = 100 - 10.0 ** -np.asarray(place)
        return percent

    axes.set_yscale("function", functions=(spread, back))
    low, high = spread(sorted(axes.get_ylim()))
    ticks: list[float] = []
    for percent in ACCURACY_TICKS:
        apart = np.abs(spread(ticks) - spread(percent)) > (high - low) / 11
        if low <= spread(percent) <= high and apart.all():
            ticks.append(percent)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    _three_ticks(axes.yaxis)
    _name_scale(axes, "logarithmic in the errors")


def _name_scale(axes: Axes, scale: str) -> None:
    for each in axes.figure.axes:
        if label := each.get_ylabel():
            each.set_ylabel(f"{label}\n{scale}")


def from_zero(axes: Axes) -> None:
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])  # room for the markers of the highest line


def from_zero_log_x(axes: Axes) -> None:
    from_zero(axes)
    plain_ticks(axes, horizontal=True)


def plain_ticks(axes: Axes, horizontal: bool = False) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    (axes.set_xscale if horizontal else axes.set_yscale)("log")
    axis = axes.xaxis if horizontal else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if horizontal else (1, 2, 3, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
    _three_ticks(axis)


def _three_ticks(axis: Axis) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator

    low, high = sorted(axis.get_view_interval())
    if sum(low <= tick <= high for tick in axis.get_majorticklocs()) < 3:
        ticks = MaxNLocator(5, min_n_ticks=3).tick_values(low, high)
        axis.set_major_locator(FixedLocator([float(tick) for tick in ticks if low <= tick <= high]))


def accuracy_over_cost(
    title: str, footnote: str, points: Sequence[tuple[ModelName, str, float, float]], x: str
) -> Figure:
    """`points`: model, network, work or speed, test accuracy in %."""
    figure, (axes,) = row_of_panels(title, footnote, [""], x, "test images right (%)", (8.0, 4.8))
    leftmost = min(point[2] for point in points)
    for model in dict.fromkeys(point[0] for point in points):
        own = sorted((point for point in points if point[0] == model), key=lambda point: point[2])
        _, labels, xs, ys = zip(*own, strict=True)
        for text, right, up in zip(labels, xs, ys, strict=True):
            place: dict[str, Any] = {"xytext": (0, 9), "ha": "left" if right == xs[-1] else "center"}
            if len(own) == 1:
                place = {"xytext": (9, -3), "ha": "left"} if right == leftmost else {"xytext": (-9, -3), "ha": "right"}
            axes.annotate(text, (right, up), textcoords="offset points", fontsize=9, **place)
        alone = {} if len(own) > 1 else {"linestyle": "none"}
        axes.plot(xs, ys, **style(model) | {"markersize": 8, "label": look_of(model).name} | alone)
    axes.margins(0.14)
    plain_ticks(axes, horizontal=True)
    accuracy_axis(axes)
    axes.legend(frameon=False)
    return figure


def png(figure: Figure, source: str = "") -> bytes:
    """A PNG of 256 colours, rare colours included: a third of the bytes. `source` stands in the file under "Source"."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    drawn, packed, about = io.BytesIO(), io.BytesIO(), PngInfo()
    figure.savefig(drawn, format="png")
    if source:
        about.add_text("Source", source)
    with Image.open(drawn) as image:
        colours = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    colours.save(packed, "png", optimize=True, pnginfo=about)
    return packed.getvalue()


SCALES = {"accuracy": accuracy_axis, "log": plain_ticks, "from zero": from_zero, "from zero, log x": from_zero_log_x}


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
        """A hash of all that is drawn: a PNG that carries the hash need not be drawn again."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def draw(self) -> Figure:
        figure, row = row_of_panels(self.title, self.footnote, list(self.panels), self.x, self.y)
        looks: dict[str, dict[str, Any]] = {}
        for axes, lines in zip(row, self.panels.values(), strict=True):
            for line in lines:
                label, look = _look(line)
                look = looks.setdefault(label, _unlike(looks.values(), look))
                axes.plot(line.xs, line.ys, **look)
                if line.low:
                    axes.fill_between(line.xs, line.low, line.high, color=look["color"], alpha=0.15, linewidth=0)
            whole_numbers(axes)
        for label, look in looks.items():  # the legend shows the lines of all panels
            row[0].plot([], [], **look, label=label)
        SCALES[self.scale](row[0])
        legend(figure, row[0])
        return figure


def _unlike(others: Collection[Mapping[str, Any]], look: dict[str, Any]) -> dict[str, Any]:
    """The look; or, if another line has it, the look of a model that no line has."""
    free = (style(model) for model in LOOKS if all(style(model)["color"] != other["color"] for other in others))
    return look | next(free, {}) if look in others else look


def _look(line: Line) -> tuple[str, dict[str, Any]]:
    if line.published:
        cross = {"marker": "x", "markersize": 9, "markeredgewidth": 2.0, "linestyle": "none"}
        return f"{look_of(line.model).name}, published", style(line.model) | cross
    hollow = {"markerfacecolor": "#ffffff"} if line.hollow else {}
    return line.label or look_of(line.model).name, style(line.model) | hollow
