"""The first study: training time and learning rates.

The published times compare a ViT of depth 6 with BatchNorm models of one block. So models are compared at equal depth
and as published. A ViT of one block, the control, shows the gain of depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from models.config import ModelConfig, ModelName
from models.plots.figures import NAMES, legend, row_of_panels
from models.plots.results import Column, Result, footnote, percent, table
from models.studies.protocol import Extent, Scope, Study, name_of_part
from models.studies.ratios import compare, gain
from models.studies.running import Run, Trained, seeded
from models.studies.series import BY_EPOCH, by_epoch, runs_table, spread_tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RATES = (0.0005, 0.005, 0.01)
BATCH_NORM: tuple[ModelName, ...] = ("vitbnffn", "vitbn")
DEPTH, PUBLISHED_DEPTH = 6, 1
MODELS: tuple[ModelName, ...] = ("vit", *BATCH_NORM)
NETWORKS = tuple((model, depth) for depth in (DEPTH, PUBLISHED_DEPTH) for model in MODELS)
"""Model and depth; those of depth 1 are the published configuration and its control."""
EQUAL = f"equal depth, {DEPTH} against {DEPTH}"
PUBLISHED = f"published configuration, ViT {DEPTH} against {PUBLISHED_DEPTH}"
CONTROL = f"control, ViT {DEPTH} against ViT {PUBLISHED_DEPTH}"
COMPARED: tuple[tuple[str, ModelName, int], ...] = (
    *((EQUAL, model, DEPTH) for model in BATCH_NORM),
    *((PUBLISHED, model, PUBLISHED_DEPTH) for model in BATCH_NORM),
    (CONTROL, "vit", PUBLISHED_DEPTH),
)


def runs(scope: Scope, rates: Sequence[float]) -> list[Run]:
    """Compared runs stand beside each other."""
    return [
        Run(
            seeded(f"{model}-depth-{depth}-lr-{lr}", seed),
            ModelConfig(model=model, depth=depth),
            scope.options(lr, seed),
        )
        for lr in rates
        for seed in range(scope.seeds)
        for model, depth in NETWORKS
    ]


def findings(trained: list[Trained], scope: Scope) -> dict[str, Any]:
    def of(model: ModelName, depth: int) -> list[Trained]:
        return [each for each in trained if (each.run.config.model, each.run.config.depth) == (model, depth)]

    derived = [
        {"configuration": name, "model": model, "depth": depth, **compare(of("vit", DEPTH), of(model, depth))}
        for name, model, depth in COMPARED
    ]
    tables = [_gains_table(derived), *spread_tables(trained), runs_table(trained)]
    return {"derived": derived, "tables": tables, "notes": []}


def _gains_table(derived: Sequence[dict[str, Any]]) -> dict[str, Any]:
    columns = [
        Column("configuration"),
        Column("model"),
        *(Column(f"r_{s} {what}", 2) for s in "tv" for what in ("(ViT / model)", "lowest", "highest")),
        *(Column(f"g_{s} %", 1) for s in "tv"),
    ]
    rows = [
        [
            row["configuration"],
            row["model"],
            *(value for s in "tv" for value in (row[f"r_{s}"], *row[f"r_{s}_range"])),
            *(percent(row[f"g_{s}"]) for s in "tv"),
        ]
        for row in derived
    ]
    title = "Time of ViT over time of the model: r_t training, r_v test, g = 1 - 1/r; range over the learning rates"
    return table(title, columns, rows)


def plots(result: Result) -> dict[str, Figure]:
    by_rate = {
        f"learning rate {lr}": [
            run for run in result["runs"] if run["options"]["lr"] == lr and run["config"]["depth"] == DEPTH
        ]
        for lr in sorted({run["options"]["lr"] for run in result["runs"]})
    }
    figures = {
        name: by_epoch(result, quantity, f"{quantity.title} at equal depth {DEPTH}", by_rate)
        for name, quantity in BY_EPOCH.items()
    }
    timed = [row for row in result["derived"] if row["r_t"] is not None]
    return figures | ({"gains": _gains(result, timed)} if timed else {})


def _gains(result: Result, rows: Sequence[dict[str, Any]]) -> Figure:
    figure, (axes,) = row_of_panels(
        "Time saved against ViT, at equal depth and as published",
        footnote(result) + "\nRanges: the learning rates.",
        [""],
        "gain g = 1 - t(model) / t(ViT)  (%)",
        "",
        (8.0, 3.9),
    )
    blank = {"facecolor": "#ffffff", "edgecolor": "none", "pad": 0.8}  # no line runs through a number
    names = []
    for place, row in enumerate(rows):
        names.append(f"{NAMES[row['model']]}\n{row['configuration']}")
        for s, shift, marker, face, what in (
            ("t", -0.12, "o", "#000000", "training"),
            ("v", 0.12, "D", "#ffffff", "test"),
        ):
            g, ends = 100 * row[f"g_{s}"], [100 * gain(r) for r in row[f"r_{s}_range"]]
            axes.plot(ends, [place + shift] * 2, color="#000000", linewidth=1.2)
            axes.plot(
                g, place + shift, marker, color="#000000", mfc=face, ms=7, label=what if place == 0 else None, ls="none"
            )
            axes.annotate(
                f"{g:.1f} %", (max(ends), place + shift), (6, 0), textcoords="offset points", va="center", bbox=blank
            )
    axes.axvline(0, color="#000000", linewidth=0.8)
    axes.axhline(
        sum(row["configuration"] == EQUAL for row in rows) - 0.5,
        color="#888888",
        linewidth=0.8,
        linestyle=":",
    )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.15, y=0.12)
    legend(figure, axes)
    return figure


def study(rates: Sequence[float], all_images: bool) -> Study:
    return Study(
        name=name_of_part("learning-rates", rates, RATES, all_images),
        question="Does BatchNorm let a Vision Transformer train faster, and at higher learning rates, than LayerNorm?",
        epochs=30,
        test_batch=5000,
        quick=Extent(epochs=3, train_images=2000, test_images=1000),
        runs=partial(runs, rates=rates),
        findings=findings,
        plots=plots,
    )
