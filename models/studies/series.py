"""What all studies show of their runs: the four series epoch by epoch, and a table of where each run ended.

In: the runs, as trained or as in the JSON. Out: a figure or a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from models.studies.figures import (
    NAMES,
    accuracy_axis,
    from_zero,
    legend,
    plain_ticks,
    row_of_panels,
    style,
    whole_numbers,
)
from models.studies.results import Column, Result, footnote, table
from models.studies.running import Trained

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Quantity:
    """One of the four series: its name in the JSON, the label of its axis with the unit, and how to plot it."""

    key: str
    title: str
    label: str
    factor: float
    scale: Callable[[Axes], None]


LOSS = Quantity("training_loss", "Training loss", "cross-entropy (nats)", 1, plain_ticks)
ACCURACY = Quantity("test_accuracy", "Test accuracy", "test images right (%)", 100, accuracy_axis)
TRAINING_TIME = Quantity("training_time_s", "Time to train one epoch", "time (s)", 1, from_zero)
TEST_TIME = Quantity("test_time_s", "Time to classify the test images", "time (s)", 1, from_zero)


def by_epoch(result: Result, quantity: Quantity, title: str, panels: Mapping[str, Sequence[dict[str, Any]]]) -> Figure:
    """A panel for each title in `panels`, in it a line for each of its runs, named by its model."""
    figure, row = row_of_panels(title, footnote(result), list(panels), "epoch", quantity.label)
    for axes, runs in zip(row, panels.values(), strict=True):
        for run in runs:
            model = run["config"]["model"]
            epochs = [epoch["epoch"] for epoch in run["series"]]
            values = [quantity.factor * epoch[quantity.key] for epoch in run["series"]]
            axes.plot(epochs, values, **style(model), label=NAMES[model])
        whole_numbers(axes)
    quantity.scale(row[0])
    legend(figure, row[0])
    return figure


def runs_table(trained: Sequence[Trained]) -> dict[str, Any]:
    """A row a run."""
    columns = [
        Column("model"),
        Column("depth", 0),
        Column("learning rate"),
        Column("batch size", 0),
        Column("training loss", 4),
        Column("test accuracy %", 2),
        Column("training s an epoch", 2),
        Column("test s", 2),
    ]
    rows = [
        [
            one.run.config.model,
            one.run.config.depth if one.run.config.is_transformer else None,
            one.run.options.lr,
            one.run.options.batch_size,
            one.series[-1].training_loss,
            100 * one.series[-1].test_accuracy,
            one.training_time_s,
            one.test_time_s,
        ]
        for one in trained
    ]
    return table("Each run: loss and accuracy of the last epoch, medians of the times", columns, rows)
