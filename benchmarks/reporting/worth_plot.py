"""The README's picture: the gain of each rewrite of ViTBN, beside the CNN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.contest.rewritten import ALL, BEST, EAGER, INT8, PLAIN
from benchmarks.reporting.sources import Result, Row, machine, number
from models.config import ModelName
from models.plots.figures import STYLES, row_of_panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Step = tuple[ModelName, str, str, float]
"""Model, contestant of `rewrites.py`, label, strength of the colour."""

STEPS: tuple[Step, ...] = (
    ("vitbn", EAGER, "PyTorch, eager", 0.25),
    ("vitbn", PLAIN, "ONNX Runtime, plain export", 0.25),
    ("vitbn", "fold", "BatchNorm folded", 0.45),
    ("vitbn", "fold + absorb", "+ keys and values absorbed", 0.6),
    ("vitbn", "fold + absorb + CLS row", "+ last block for one row", 0.8),
    ("vitbn", ALL, "all rewrites", 1.0),
    ("vitbn", INT8, "all rewrites, int8", 1.0),
    ("cnn", ALL, "CNN, BatchNorm folded", 1.0),
)


def worth(result: Result) -> Figure:
    depths = result["results"]
    title = f"What the exact rewrites of ViTBN are worth: {result['images']:,} images, {machine(result)}"
    footnote = (
        "Beside each bar: times as fast as the plain export. Each at its best batch and threads. "
        "int8 rounds, the rest is exact. The CNN has no depth."
    )
    titles = [f"depth {measured['depth']}" for measured in depths]
    steps = [step for step in STEPS if all(step[:2] in _best_ms(measured["rows"]) for measured in depths)]
    figure, panels = row_of_panels(title, footnote, titles, "images a second", "", (4.6 * len(depths) + 1.2, 3.9))
    for axes, measured in zip(panels, depths, strict=True):
        _bars(axes, steps, _best_ms(measured["rows"]), result["images"])
    panels[0].set_yticks(range(len(steps)), [label for *_, label, _ in steps])
    panels[0].invert_yaxis()
    return figure


def _best_ms(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    return {(row["model"], row["contestant"]): row["p50_ms"] for row in rows if row.get("kind") == BEST}


def _bars(axes: Axes, steps: Sequence[Step], best_ms: dict[tuple[str, str], float], images: int) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    for height, (model, contestant, _, alpha) in enumerate(steps):
        ms = best_ms[model, contestant]
        images_per_s = 1000 * images / ms
        axes.barh(height, images_per_s, 0.7, color=STYLES[model][0], alpha=alpha)
        label = f"{number(best_ms['vitbn', PLAIN] / ms)} x"
        axes.annotate(label, (images_per_s, height), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.margins(x=0.16)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, min_n_ticks=3))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(False, axis="y")
