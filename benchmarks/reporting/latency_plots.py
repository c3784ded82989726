from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.contest.runtimes import BASELINE
from benchmarks.measure.results import Extras
from models.plots.figures import NAMES, legend, plain_ticks, row_of_panels, style
from models.plots.results import machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]

QUANTITIES = {"latency": ("p50_ms", "time of a call (ms)"), "throughput": ("images_per_s", "images a second")}
AXES = {"batch": "images a call", "depth": "depth (blocks)", "dim": "width of a token (features)"}


def beside(path: Path | None) -> Extras:
    """Figures as PNG and SVG; a sweep adds their names to `path`."""

    def files(result: Mapping[str, Any]) -> dict[Path, bytes]:
        if not path:
            return {}
        return {
            path.with_name(f"{path.stem}{name}.{kind}"): _file(figure, kind)
            for name, figure in figures(result).items()
            for kind in ("png", "svg")
        }

    return files


def figures(result: Mapping[str, Any]) -> dict[str, Figure]:
    """File suffix -> figure."""
    if result["benchmark"] == "sweep":
        return _of_sweep(result)
    return {"": _of_latency(result)} if result["rows"] else {}


def _file(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind)
    return buffer.getvalue()


def _of_latency(result: Mapping[str, Any]) -> Figure:
    by_batch: dict[int, list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        by_batch.setdefault(row["batch"], []).append(row)
    height = 1.6 + 0.24 * max(map(len, by_batch.values()))
    caveat = f"{result['caveat']}\n" if result["caveat"] else ""
    footnote = f"{caveat}Median of interleaved rounds, line to the 90th percentile. {machine(dict(result))}."
    titles = [f"{batch:,} image{'s' * (batch > 1)} a call" for batch in by_batch]
    size = (4.5 + 3.5 * len(titles), height)
    figure, panels = row_of_panels("Time of a call", footnote, titles, "time (ms)", "", size)
    for axes, rows in zip(panels, by_batch.values(), strict=True):
        for row in rows:
            look = style(row["model"]) | {"linestyle": "-"}
            axes.plot([row["p50_ms"], row["p90_ms"]], [_name(row)] * 2, **look, markevery=[0])
        axes.margins(y=0.7 / len(rows))
        _decades(axes, horizontal=True)
    panels[0].invert_yaxis()  # table order; the panels share this axis
    return figure


def _name(row: Mapping[str, Any]) -> str:
    depth = f" {row['depth']}" if row["depth"] else ""
    lower = "" if row["precision"] == "fp32" else f", {row['precision']}"
    return f"{NAMES[row['model']]}{depth}, {row['label']}{lower}"


def _of_sweep(result: Mapping[str, Any]) -> dict[str, Figure]:
    footnote = f"Medians of interleaved rounds. {machine(dict(result))}."
    measured = {axis: rows for axis, rows in result["axes"].items() if rows}
    figures = {"-work": _work(measured, footnote)} if measured else {}
    for axis in ("batch", "depth"):
        rows = [row for row in measured.get(axis, []) if row[axis]]  # the CNN has no depth
        if not rows:
            continue
        for quantity, (key, label) in QUANTITIES.items():
            title = f"{quantity.capitalize()} against {axis}"
            figure, (axes,) = row_of_panels(title, footnote, [""], AXES[axis], label, (10.0, 4.8))
            _lines(axes, rows, axis, key)
            legend(figure, axes)
            figures[f"-{axis}-{quantity}"] = figure
    return figures


def _work(panels: Mapping[str, Rows], footnote: str) -> Figure:
    titles = [f"by {AXES[axis]}" for axis in panels]
    x, y = "multiply-accumulates a call (million)", "time of a call (ms)"
    figure, row = row_of_panels("Cost against work", footnote, titles, x, y, (4.2 * len(titles), 5.2))
    for axes, rows in zip(row, panels.values(), strict=True):
        with_work = [dict(each) | {"work": each["macs"] * each["batch"] / 1e6} for each in rows]
        _lines(axes, with_work, "work", "p50_ms")
        _decades(axes, horizontal=True)
        _decades(axes)
    row[0].legend(frameon=False, fontsize=8)
    return figure


def _decades(axes: Axes, horizontal: bool = False) -> None:
    """Ticks only at powers of ten, if the axis spans enough."""
    from matplotlib.ticker import LogLocator

    plain_ticks(axes, horizontal)
    low, high = axes.get_xlim() if horizontal else axes.get_ylim()
    if floor(log10(high)) - ceil(log10(low)) >= 2:
        (axes.xaxis if horizontal else axes.yaxis).set_major_locator(LogLocator())


def _lines(axes: Axes, rows: Rows, x: str, y: str) -> None:
    for (model, runtime, precision), own in _by_contestant(rows):
        lower = "" if precision == "fp32" else f", {precision}"
        look = style(model) | ({"markerfacecolor": "white"} if runtime == BASELINE else {})
        points = sorted((row[x], row[y]) for row in own)
        axes.plot(*zip(*points, strict=True), **look, label=f"{NAMES[model]}, {own[0]['label']}{lower}")
    plain_ticks(axes, horizontal=True)
    plain_ticks(axes)


def _by_contestant(rows: Rows) -> Iterator[tuple[tuple[Any, str, str], list[Mapping[str, Any]]]]:
    keys = dict.fromkeys((row["model"], row["runtime"], row["precision"]) for row in rows)
    for key in keys:
        yield key, [row for row in rows if (row["model"], row["runtime"], row["precision"]) == key]
