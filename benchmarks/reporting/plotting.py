"""Axes, panels and styles of all plots, and pictures of lines as data (`Picture`).

A model has the same colour and marker in every plot. The colours are Okabe and Ito's, for the colour-blind.
"""

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
PANELS_IN_A_ROW = 3  # a page shrinks a wider picture to its width, and the letters with it


class Look(NamedTuple):
    """A model's name in legends, and the style of its line."""

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

# Percent, in order of preference: a tick is left out where it would touch an earlier one.
ACCURACY_TICKS = (99, 90, 99.9, 99.5, 95, 50, 98, 99.7, 80, 99.8, 97, 20, 70, 99.3, 10, 93, 30, 40, 60, 85, 98.5, 99.6)


def look_of(model: ModelName) -> Look:
    return LOOKS.get(model, Look(model))


def style(model: ModelName) -> dict[str, Any]:
    """The keyword arguments of `Axes.plot` for the model's line."""
    look = look_of(model)
    return {"color": look.colour, "linestyle": look.dash, "marker": look.marker, "markersize": 5, "linewidth": 1.6}


def row_of_panels(
    title: str, footnote: str, titles: Sequence[str], x: str, y: str, size: tuple[float, float] | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each title. Labels `x` and `y` include units; `size` in inches."""
    from matplotlib.figure import Figure

    columns = min(len(titles), PANELS_IN_A_ROW)
    rows = -(-len(titles) // columns)
    inches = size or (max(8.0, 2.2 + 2.9 * columns), 0.4 + 3.5 * rows)
    figure = Figure(figsize=inches, layout="constrained", dpi=DPI)
    grid = figure.subplots(rows, columns, sharex=size is None, sharey=True, squeeze=False)
    panels = grid.ravel()[: len(titles)]
    for empty in grid.ravel()[len(titles) :]:
        empty.set_axis_off()
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    letters = int(LETTERS_PER_INCH * figure.get_figwidth())
    footnote = "\n".join(textwrap.fill(line, letters) for line in footnote.splitlines())
    figure.supxlabel(footnote, x=0.01, ha="left", fontsize=7.5, color="#555555")
    for axes, name in zip(panels, titles, strict=True):
        axes.set_title(name, fontsize=10)
        axes.set_xlabel(x)
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    for leftmost in grid[:, 0]:
        leftmost.set_ylabel(y)
    return figure, list(panels)


def legend(figure: Figure, axes: Axes) -> None:
    """Adds the legend of `axes` outside the panels: above them, or beside them if it is long."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) <= 4:
        figure.legend(handles, labels, loc="outside upper right", ncols=4, frameon=False)
    else:
        figure.legend(handles, labels, loc="outside right center", frameon=False)


def whole_numbers(axes: Axes) -> None:
    """Puts the ticks of the x axis at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))


def accuracy_axis(axes: Axes) -> None:
    """Makes the scale logarithmic in the errors: 90 to 99 % get as much room as 99 to 99.9 %."""
    import numpy as np
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    def height(percent: Any) -> NDArray[np.float64]:
        heights: NDArray[np.float64] = -np.log10(np.maximum(100 - np.asarray(percent), 0.01))
        return heights

    def percent_at(height: Any) -> NDArray[np.float64]:
        percents: NDArray[np.float64] = 100 - 10.0 ** -np.asarray(height)
        return percents

    axes.set_yscale("function", functions=(height, percent_at))
    low, high = height(sorted(axes.get_ylim()))
    ticks: list[float] = []
    for percent in ACCURACY_TICKS:
        far_apart = np.abs(height(ticks) - height(percent)) > (high - low) / 11
        if low <= height(percent) <= high and far_apart.all():
            ticks.append(percent)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    _ensure_three_ticks(axes.yaxis)
    for panel in axes.figure.axes:
        if label := panel.get_ylabel():
            panel.set_ylabel(f"{label}\nlogarithmic in the errors")


def from_zero(axes: Axes) -> None:
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])  # room for the markers of the highest line


def from_zero_log_x(axes: Axes) -> None:
    from_zero(axes)
    plain_ticks(axes, horizontal=True)


def plain_ticks(axes: Axes, horizontal: bool = False) -> None:
    """Makes the y axis (`horizontal`: the x axis) logarithmic, with ticks in plain numbers instead of powers of ten."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    (axes.set_xscale if horizontal else axes.set_yscale)("log")
    axis = axes.xaxis if horizontal else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if horizontal else (1, 2, 3, 5)))
    axis.set_major_formatter(StrMethodFormatter("{x:,.10g}"))
    axis.set_minor_formatter(NullFormatter())
    _ensure_three_ticks(axis)


def _ensure_three_ticks(axis: Axis) -> None:
    """Replaces the ticks by evenly spaced ones if fewer than three are visible."""
    from matplotlib.ticker import FixedLocator, MaxNLocator

    low, high = sorted(axis.get_view_interval())
    if sum(low <= tick <= high for tick in axis.get_majorticklocs()) < 3:
        ticks = MaxNLocator(5, min_n_ticks=3).tick_values(low, high)
        axis.set_major_locator(FixedLocator([float(tick) for tick in ticks if low <= tick <= high]))


def accuracy_over_cost(
    title: str, footnote: str, points: Sequence[tuple[ModelName, str, float, float]], x: str
) -> Figure:
    """A line for each model. `points`: model, network, value on the axis `x`, and test accuracy in %."""
    figure, (axes,) = row_of_panels(title, footnote, [""], x, "test images right (%)", (8.0, 4.8))
    leftmost = min(point[2] for point in points)
    for model in dict.fromkeys(point[0] for point in points):
        of_model = sorted((point for point in points if point[0] == model), key=lambda point: point[2])
        _, networks, xs, ys = zip(*of_model, strict=True)
        for network, x_value, y_value in zip(networks, xs, ys, strict=True):
            place: dict[str, Any] = {"xytext": (0, 9), "ha": "left" if x_value == xs[-1] else "center"}
            if len(xs) == 1 and x_value == leftmost:
                place = {"xytext": (9, -3), "ha": "left"}
            elif len(xs) == 1:
                place = {"xytext": (-9, -3), "ha": "right"}
            axes.annotate(network, (x_value, y_value), textcoords="offset points", fontsize=9, **place)
        single_point = {} if len(xs) > 1 else {"linestyle": "none"}
        axes.plot(xs, ys, **style(model) | {"markersize": 8, "label": look_of(model).name} | single_point)
    axes.margins(0.14)
    plain_ticks(axes, horizontal=True)
    accuracy_axis(axes)
    axes.legend(frameon=False)
    return figure


def png(figure: Figure, source: str = "") -> bytes:
    """The figure as a PNG of 256 colours, which has a third of the bytes of one with all colours.

    The palette covers rare colours too. `source`: text that the file holds under "Source".
    """
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    all_colours, output, metadata = io.BytesIO(), io.BytesIO(), PngInfo()
    figure.savefig(all_colours, format="png")
    if source:
        metadata.add_text("Source", source)
    with Image.open(all_colours) as image:
        quantised = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    quantised.save(output, "png", optimize=True, pnginfo=metadata)
    return output.getvalue()


SCALES = {"accuracy": accuracy_axis, "log": plain_ticks, "from zero": from_zero, "from zero, log x": from_zero_log_x}


@dataclass(frozen=True)
class Line:
    """A line of a picture. `low` and `high`: the range of the seeds, drawn as a band, or empty.

    `label`: in the legend; empty: the model's name. `hollow`: white markers. `published`: crosses without a line.
    """

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
    """The mean of the seeds, and their range if there are several. `seeds`: at each x the value of each seed."""
    several = any(len(values) > 1 for values in seeds)
    low = [min(values) for values in seeds] if several else []
    high = [max(values) for values in seeds] if several else []
    return Line(model, xs, [*map(mean, seeds)], low, high, label, hollow)


@dataclass(frozen=True)
class Picture:
    """`x` and `y`: labels of the axes, with units; `scale`: a name in SCALES; `panels`: title -> lines."""

    title: str
    footnote: str
    x: str
    y: str
    scale: str
    panels: Mapping[str, Sequence[Line]]

    def digest(self) -> str:
        """A hash of everything that is drawn: a PNG that carries the hash need not be drawn again."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def draw(self) -> Figure:
        """The figure. Lines with one label have one style, and lines with different labels have different styles."""
        figure, panels = row_of_panels(self.title, self.footnote, list(self.panels), self.x, self.y)
        styles: dict[str, dict[str, Any]] = {}
        for axes, lines in zip(panels, self.panels.values(), strict=True):
            for line in lines:
                label, line_style = _label_and_style(line)
                line_style = styles.setdefault(label, _unused_style(styles.values(), line_style))
                axes.plot(line.xs, line.ys, **line_style)
                if line.low:
                    colour = line_style["color"]
                    axes.fill_between(line.xs, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
            whole_numbers(axes)
        for label, line_style in styles.items():  # the legend shows the lines of all panels
            panels[0].plot([], [], **line_style, label=label)
        SCALES[self.scale](panels[0])
        legend(figure, panels[0])
        return figure


def _unused_style(used: Collection[Mapping[str, Any]], line_style: dict[str, Any]) -> dict[str, Any]:
    """The style; if another line has it, the same with the colour, dash and marker of a model that no line shows."""
    used_colours = {other["color"] for other in used}
    unused = (style(model) for model, look in LOOKS.items() if look.colour not in used_colours)
    return line_style | next(unused, {}) if line_style in used else line_style


def _label_and_style(line: Line) -> tuple[str, dict[str, Any]]:
    """The line's text in the legend, and its keyword arguments of `Axes.plot`."""
    if line.published:
        cross = {"marker": "x", "markersize": 9, "markeredgewidth": 2.0, "linestyle": "none"}
        return f"{look_of(line.model).name}, published", style(line.model) | cross
    hollow = {"markerfacecolor": "#ffffff"} if line.hollow else {}
    return line.label or look_of(line.model).name, style(line.model) | hollow
