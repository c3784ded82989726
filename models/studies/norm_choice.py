"""A network with LayerNorm, BatchNorm, and norms between them.

Equal depth, images, epochs and seeds. `benchmarks/norms.py` measures the rewritten networks' speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from statistics import mean
from typing import TYPE_CHECKING, Any

from models.config import ModelName
from models.plots.figures import NAMES, legend, row_of_panels, style
from models.plots.results import Column, Result, footnote, percent, table
from models.studies.protocol import Extent, Scope, Study
from models.studies.running import Run, Trained, seeded
from models.studies.series import ACCURACY, by_epoch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEPTH = 6
USUAL, HIGH = 0.001, 0.01
WAYS: dict[str, dict[str, Any]] = {
    "usual": {"lr": USUAL},
    "high": {"lr": HIGH},
    "recipe": {"lr": USUAL, "schedule": "one-cycle", "clip": 1.0},
}
"""Three trainings of each norm: the name in the JSON, and the options."""
TITLES = {"usual": f"at {USUAL}", "high": f"at {HIGH}", "recipe": "with warm-up, one-cycle, clipping"}
FOLDING: tuple[ModelName, ...] = ("vitbn", "vit-repbn", "vit-prepbn", "vit-un", "vit-dfn")
BY_TOKEN: tuple[ModelName, ...] = ("vit", "vit-dtn", "vit-minmax", "vit-zscore")
NORMS: tuple[ModelName, ...] = (*BY_TOKEN, *FOLDING)
DATASETS = ("mnist", "fashion-mnist", "cifar10")


def runs(scope: Scope, ways: Sequence[str], norms: Sequence[ModelName]) -> list[Run]:
    return [
        Run(
            seeded(f"{model}-{way}", seed),
            scope.dataset.model_config(model, DEPTH),
            scope.options(seed=seed, **WAYS[way]),
        )
        for way in ways
        for seed in range(scope.seeds)
        for model in norms
    ]


def findings(trained: list[Trained], scope: Scope) -> dict[str, Any]:
    by_model: dict[str, dict[str, list[Trained]]] = {}
    for training in trained:
        ways = by_model.setdefault(training.run.config.model, {})
        ways.setdefault(way_of(asdict(training.run.options)), []).append(training)
    derived = [_row(model, ways) for model, ways in by_model.items()]
    layer_norm_s = next((row["training_time_s"] for row in derived if row["model"] == "vit"), None)
    for row in derived:
        time_s = row["training_time_s"]
        row["of_layer_norm"] = time_s / layer_norm_s if time_s and layer_norm_s else None
    shown = [way for way in WAYS if way in derived[0]]
    diverged = [training.run.label for training in trained if training.diverged]
    notes = [f"The loss of {', '.join(diverged)} was no longer finite: stopped."] if diverged else []
    notes += [line for way in shown if (line := _against_batch_norm(derived, way))]
    missing = [NAMES[model] for model in NORMS if model not in by_model]
    notes += [f"Not run: {', '.join(missing)}."] if missing else []
    return {"derived": derived, "tables": [_table(derived, shown, scope.seeds)], "notes": notes}


def _table(derived: Sequence[dict[str, Any]], ways: Sequence[str], seeds: int) -> dict[str, Any]:
    several = seeds > 1
    columns = [
        Column("model"),
        Column("folds"),
        *(Column(f"test accuracy % {TITLES[way]}", None if several else 2) for way in ways),
        *(Column(f"largest fall {TITLES[way]}, points", 2) for way in ways),
        Column("training s an epoch", 2),
        Column("of ViT's", 2),
    ]
    rows = [
        [
            row["model"],
            "yes" if row["folds"] else "no",
            *(_with_range(row[way]) if several else percent(row[way]["test_accuracy"]) for way in ways),
            *(percent(row[way]["largest_fall"]) for way in ways),
            row["training_time_s"],
            row["of_layer_norm"],
        ]
        for row in derived
    ]
    over = f"{seeds} seeds: mean, lowest to highest accuracy, largest fall of all" if several else "seed 0"
    return table(f"Depth {DEPTH}, {over}; the largest fall is from the best epoch before", columns, rows)


def _against_batch_norm(derived: Sequence[dict[str, Any]], way: str) -> str | None:
    ends = {row["model"]: row[way]["test_accuracy"] for row in derived if row["folds"]}
    ours = ends.pop("vitbn", None)
    said = [f"{NAMES[model]} {100 * (end - ours):+.2f}" for model, end in ends.items() if None not in (end, ours)]
    return f"Accuracy {TITLES[way]} against ViTBN's, points: {', '.join(said)}." if said else None


def way_of(options: dict[str, Any]) -> str:
    return next(way for way, own in reversed(WAYS.items()) if own.items() <= options.items())


def _row(model: str, ways: dict[str, list[Trained]]) -> dict[str, Any]:
    first = next(iter(ways.values()))[0]
    return {
        "model": model,
        "folds": model in FOLDING,
        **{way: _stability(runs) for way, runs in ways.items()},
        "training_time_s": first.training_time_s if first.series else None,
        "checkpoint": first.checkpoint.name,
    }


def _stability(runs: Sequence[Trained]) -> dict[str, Any]:
    """`largest_fall`: of accuracy, below an earlier epoch."""
    if any(run.diverged for run in runs):
        return {"test_accuracy": None, "range": None, "largest_fall": None}
    last = [run.series[-1].test_accuracy for run in runs]
    return {"test_accuracy": mean(last), "range": [min(last), max(last)], "largest_fall": max(map(_fall, runs))}


def _fall(training: Trained) -> float:
    best = fall = 0.0
    for epoch in training.series:
        fall, best = max(fall, best - epoch.test_accuracy), max(best, epoch.test_accuracy)
    return fall


def _with_range(row: dict[str, Any]) -> str | None:
    if row["range"] is None:
        return None
    low, high = (100 * end for end in row["range"])
    return f"{100 * row['test_accuracy']:.2f} ({low:.2f} to {high:.2f})"


def plots(result: Result) -> dict[str, Figure]:
    panels: dict[str, Sequence[dict[str, Any]]] = {
        TITLES[way]: runs for way in WAYS if (runs := [run for run in result["runs"] if way_of(run["options"]) == way])
    }
    title = f"Test accuracy by norm, depth {DEPTH}"
    times = {"training-time": _times(result)} if any(row["of_layer_norm"] for row in result["derived"]) else {}
    return {"test-accuracy": by_epoch(result, ACCURACY, title, panels), **times}


def _times(result: Result) -> Figure:
    title = "Time to train one epoch, against LayerNorm's"
    figure, (axes,) = row_of_panels(title, footnote(result), [""], "time over ViT's", "", (8.0, 4.2))
    rows = [row for row in result["derived"] if row["of_layer_norm"]]
    for place, row in enumerate(rows):
        colour = style(row["model"])["color"]
        axes.barh(place, row["of_layer_norm"], color=colour if row["folds"] else "#ffffff", edgecolor=colour)
        axes.annotate(f"{row['of_layer_norm']:.2f}", (row["of_layer_norm"], place), (4, -3), textcoords="offset points")
    axes.barh([0], [0], color="#777777", label="folds at export")
    axes.barh([0], [0], color="#ffffff", edgecolor="#777777", label="does not fold")
    axes.set_yticks(range(len(rows)), [NAMES[row["model"]] for row in rows])
    axes.invert_yaxis()
    legend(figure, axes)
    return figure


def study(ways: Sequence[str], norms: Sequence[ModelName]) -> Study:
    return Study(
        name="-".join(["norms", *(way for way in ways if tuple(ways) != tuple(WAYS))]),
        question="Which norm trains well, stays stable at a high learning rate, and costs nothing once folded?",
        epochs=10,
        test_batch=100,
        quick=Extent(epochs=2, train_images=1000, test_images=500),
        runs=partial(runs, ways=ways, norms=norms),
        findings=findings,
        plots=plots,
    )
