"""The four series by epoch, and a table of last epochs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

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
from models.plots.results import Column, Result, footnote, table
from models.studies.running import Trained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Quantity:
    key: str
    title: str
    label: str
    factor: float
    scale: Callable[[Axes], None]


LOSS = Quantity("training_loss", "Training loss", "cross-entropy (nats)", 1, plain_ticks)
ACCURACY = Quantity("test_accuracy", "Test accuracy", "test images right (%)", 100, accuracy_axis)
TRAINING_TIME = Quantity("training_time_s", "Time to train one epoch", "time (s)", 1, from_zero)
TEST_TIME = Quantity("test_time_s", "Time to classify the test images", "time (s)", 1, from_zero)
BY_EPOCH = {
    "training-loss": LOSS,
    "test-accuracy": ACCURACY,
    "training-time": TRAINING_TIME,
    "test-time": TEST_TIME,
}
"""The study's four plots: name in the file and quantity."""


def by_epoch(result: Result, quantity: Quantity, title: str, panels: Mapping[str, Sequence[dict[str, Any]]]) -> Figure:
    """A panel per title, a line per run; the seeds of a model look alike."""
    figure, row = row_of_panels(title, footnote(result), list(panels), "epoch", quantity.label)
    for axes, runs in zip(row, panels.values(), strict=True):
        for run in runs:
            model = run["config"]["model"]
            epochs = [epoch["epoch"] for epoch in run["series"]]
            values = [quantity.factor * epoch[quantity.key] for epoch in run["series"]]
            rates = sorted({other["options"]["lr"] for other in runs if other["config"]["model"] == model})
            name = f"{NAMES[model]}, {run['options']['lr']:g}" if len(rates) > 1 else NAMES[model]
            hollow = {"markerfacecolor": "#ffffff"} if run["options"]["lr"] != rates[-1] else {}
            label = name if run["options"].get("seed", 0) == 0 else None
            axes.plot(epochs, values, **style(model) | hollow, label=label)
        whole_numbers(axes)
    quantity.scale(row[0])
    legend(figure, row[0])
    return figure


def runs_table(trained: Sequence[Trained]) -> dict[str, Any]:
    columns = [
        Column("model"),
        Column("depth", 0),
        Column("learning rate"),
        Column("batch size", 0),
        Column("seed", 0),
        Column("training loss", 4),
        Column("test accuracy %", 2),
        Column("training s an epoch", 2),
        Column("test s", 2),
    ]
    rows = [
        [
            training.run.config.model,
            training.run.config.depth if training.run.config.is_transformer else None,
            training.run.options.lr,
            training.run.options.batch_size,
            training.run.options.seed,
            *_last(training),
        ]
        for training in trained
    ]
    return table("Each run: loss and accuracy of the last epoch, medians of the times", columns, rows)


def _last(training: Trained) -> list[float | None]:
    if not training.series:
        return [None] * 4
    end = training.series[-1]
    return [end.training_loss, 100 * end.test_accuracy, training.training_time_s, training.test_time_s]


def spread_tables(trained: Sequence[Trained]) -> list[dict[str, Any]]:
    by_run: dict[tuple[str, int, float], list[Trained]] = {}
    for training in trained:
        config, options = training.run.config, training.run.options
        by_run.setdefault((config.model, config.depth, options.lr), []).append(training)
    seeds = max(map(len, by_run.values()), default=0)
    if seeds < 2:
        return []
    columns = [Column("model"), Column("depth", 0), Column("learning rate"), Column("diverged", 0)]
    columns += [Column(f"test accuracy % {what}", 2) for what in ("mean", "lowest", "highest")]
    rows: list[list[object]] = []
    for key, runs in by_run.items():
        accuracies = [100 * run.series[-1].test_accuracy for run in runs if not run.diverged]
        ends = [mean(accuracies), min(accuracies), max(accuracies)] if accuracies else [None] * 3
        rows.append([*key, len(runs) - len(accuracies), *ends])
    return [table(f"Accuracy of the last epoch over {seeds} seeds", columns, rows)]
