"""Latency against throughput under load: a figure per model, a panel per request size."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from benchmarks.load.terms import engine_and_sharing, wire

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEGEND = "instances x threads\n(filled: in flight, hollow: a rate)"

Row = dict[str, Any]


def by_model(rows: Sequence[Row], footnote: str) -> dict[str, Figure]:
    return {
        name: _figure(name, [row for row in rows if row["model"] == name], footnote) for name in _each(rows, "model")
    }


def _figure(model: str, rows: Sequence[Row], footnote: str) -> Figure:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    from models.plots.figures import STYLES, plain_ticks, row_of_panels

    targets = list(dict.fromkeys(_name(row) for row in rows))
    looks = dict(zip(targets, cycle(dict.fromkeys(STYLES.values())), strict=False))
    batches = _each(rows, "batch")
    titles = [f"{batch} image{'s' * (batch > 1)} a request" for batch in batches]
    title = f"{model} under load"
    x, y = "images answered a second", "p50 to p99 of a request (ms)"
    figure, panels = row_of_panels(title, footnote, titles, x, y, (4 + 3.2 * len(titles), 4))
    for axes, batch in zip(panels, batches, strict=True):
        for target in targets:
            for asked in ("in_flight", "rate"):
                points = [row for row in rows if row["batch"] == batch and row[asked] and _name(row) == target]
                if points:
                    _line(axes, sorted(points, key=lambda row: float(row[asked])), asked, target, looks[target])
        axes.margins(0.12)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    plain_ticks(panels[0])  # shared by all
    lines = {name: line for axes in panels for line, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(lines.values(), lines.keys(), loc="outside right upper", frameon=False, title=LEGEND)
    return figure


def _line(axes: Axes, points: Sequence[Row], asked: str, target: str, look: tuple[str, Any, str]) -> None:
    colour, dash, marker = look
    is_rate = asked == "rate"
    xs, p50s = [row["images_per_s"] for row in points], [row["p50_ms"] for row in points]
    axes.errorbar(
        xs,
        p50s,
        yerr=[[0.0] * len(points), [row["p99_ms"] - row["p50_ms"] for row in points]],
        label=target,
        color=colour,
        linestyle=dash,
        linewidth=0.8 if is_rate else 1.6,
        marker=marker,
        markersize=5,
        markerfacecolor="white" if is_rate else colour,
        elinewidth=0.6,
        capsize=2,
    )
    for row, x, y in zip(points, xs, p50s, strict=True):
        if not is_rate:
            axes.annotate(str(row["in_flight"]), (x, y), (4, -9), textcoords="offset points", fontsize=7)


def _name(row: Row) -> str:
    return f"{engine_and_sharing(row)}, {wire(row)}"


def _each(rows: Sequence[Row], name: str) -> list[Any]:
    return list(dict.fromkeys(row[name] for row in rows))
