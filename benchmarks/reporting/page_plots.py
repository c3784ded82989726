"""The plots of the project's pages. In: a result. Out: a PNG; equal numbers give equal bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from benchmarks.measure.foreign_candidates import OURS
from benchmarks.measure.result_file import Run
from benchmarks.measure.rewrite_speedups import ALL, BEST, EAGER, INT8, PLAIN
from benchmarks.reporting.plotting import accuracy_over_cost, legend, look_of, png, row_of_panels
from benchmarks.reporting.tables.network_comparison import test_accuracy
from benchmarks.reporting.tables.table import number
from models.networks.config import ModelName

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Bar = tuple[ModelName, str, str, float]
"""Model, candidate of the preset `rewrites`, label, opacity."""

BARS: tuple[Bar, ...] = (
    ("vitbn", EAGER, "PyTorch, eager", 0.25),
    ("vitbn", PLAIN, "ONNX Runtime, plain export", 0.25),
    ("vitbn", "fold", "BatchNorm folded", 0.45),
    ("vitbn", "fold + absorb", "+ keys and values absorbed", 0.6),
    ("vitbn", "fold + absorb + CLS row", "+ last block for one row", 0.8),
    ("vitbn", ALL, "all rewrites", 1.0),
    ("vitbn", INT8, "all rewrites, int8", 1.0),
    ("cnn", ALL, "CNN, BatchNorm folded", 1.0),
)


def worth(run: Run) -> bytes:
    """The README's picture: the gain of each rewrite of ViTBN, beside the CNN."""
    images = run.rows[0]["images"]
    title = f"What the exact rewrites of ViTBN are worth: {images:,} images, {_machine(run)}"
    footnote = (
        "Beside each bar: times as fast as the plain export. Each at its best batch and threads. "
        "int8 rounds, the rest is exact. The CNN has no depth."
    )
    depths = dict.fromkeys(row["at_depth"] for row in run.rows)
    titles = [f"depth {depth}" for depth in depths]
    figure, panels = row_of_panels(title, footnote, titles, "images a second", "", (4.6 * len(titles) + 1.2, 3.9))
    for axes, depth in zip(panels, depths, strict=True):
        best = [row for row in run.rows if row.get("kind") == BEST and row["at_depth"] == depth]
        _bars(axes, {(row["model"], row["candidate"]): row["p50_ms"] for row in best}, images)
    panels[0].set_yticks(range(len(BARS)), [label for *_, label, _ in BARS])
    panels[0].invert_yaxis()
    return png(figure)


def _bars(axes: Axes, p50_ms: Mapping[tuple[str, str], float], images: int) -> None:
    """A bar of the images a second for each of BARS. `p50_ms`: model and candidate -> duration for `images` images."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    for height, (model, candidate, _, opacity) in enumerate(BARS):
        ms = p50_ms[model, candidate]
        images_per_s = 1000 * images / ms
        axes.barh(height, images_per_s, 0.7, color=look_of(model).colour, alpha=opacity)
        label = f"{number(p50_ms['vitbn', PLAIN] / ms)} x"
        axes.annotate(label, (images_per_s, height), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.margins(x=0.16)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, min_n_ticks=3))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(False, axis="y")


def frontier(run: Run) -> bytes:
    """Test accuracy against images a second of networks for MNIST."""
    return _frontier(run, "What accuracy costs in speed")


def garments(run: Run) -> bytes:
    """Test accuracy against images a second of networks for Fashion-MNIST."""
    return _frontier(run, "What accuracy costs in speed where it is not full: Fashion-MNIST")


def _frontier(run: Run, title: str) -> bytes:
    points = [
        (row["model"], PurePath(row["checkpoint"]).stem, row["images_per_s"], 100 * test_accuracy(row))
        for row in run.rows
    ]
    first = run.rows[0]
    rounds, images = len(first["samples_ns"]), first["images"]
    timing = f"Medians of {rounds} interleaved rounds, {images:,} images each, ONNX Runtime, all rewrites."
    speed = "images a second, rewritten, on this machine"
    return png(accuracy_over_cost(title, f"{timing}\n{_machine(run)}.", points, speed))


def foreign(run: Run) -> bytes:
    """How many times as fast as the exported file the rewritten file is, with its interval, at batches of 1 and 8."""
    title, axis = "The ONNX rewrites on third-party networks", "times as fast as the plain file"
    rewritten = [row for row in run.rows if row.get("candidate") == OURS and "samples_ns" in row]
    titles = list(dict.fromkeys(row["title"] for row in rewritten))
    footnote = "One thread of ONNX Runtime, interleaved medians, 95 % bootstrap intervals."
    figure, (axes,) = row_of_panels(title, footnote, [""], axis, "", (8.0, 1.6 + 0.4 * len(titles)))
    for batch, marker, colour, offset in ((1, "o", "#1f5f99", 0.0), (8, "s", "#b3541e", 0.2)):
        for index, row in enumerate(row for row in rewritten if row["batch"] == batch):
            ratio, height = row["times_as_fast"], titles.index(row["title"]) + offset
            interval = [[ratio["ratio"] - ratio["low"]], [ratio["high"] - ratio["ratio"]]]
            label = f"batch {batch}" if index == 0 else "_"  # matplotlib's legend omits labels that start with _
            style: dict[str, Any] = {"capsize": 3, "marker": marker, "color": colour, "label": label}
            axes.errorbar([ratio["ratio"]], [height], xerr=interval, **style)
    axes.axvline(1, color="#555555", linewidth=0.9)
    axes.set_yticks(range(len(titles)), [title.replace("`", "") for title in titles])
    axes.invert_yaxis()
    legend(figure, axes)
    return png(figure)


def _machine(run: Run) -> str:
    return f"{run.machine['threads']} of {run.machine['cores']} cores of {run.machine['cpu']}"
