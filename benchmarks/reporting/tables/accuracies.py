"""The tables of test accuracies."""

from __future__ import annotations

from benchmarks.measure.result_file import Run
from benchmarks.reporting.tables.table import Table, percent


def accuracy(run: Run) -> Table:
    """Each runtime's accuracy, and its agreement with PyTorch."""
    rows = [
        {"model": row["model"], "runtime": row["runtime"], "test accuracy %": percent(row["accuracy"])}
        | {"same class as PyTorch %": percent(row["agreement"])}
        | {"largest error of a logit": f"{row['max_abs_error']:.1e}"}
        for row in run.rows
    ]
    return Table(rows, 2)


def conditions(run: Run) -> Table:
    """Each model's accuracy on digits as different pens, scanners and cameras show them, a column each."""
    cells_by_model: dict[str, dict[str, str]] = {}
    for row in run.rows:
        cells = cells_by_model.setdefault(row["model"], {"right, %": f"`{row['model']}`"})
        cells[row["condition"]] = percent(row["accuracy"])
    return Table([*cells_by_model.values()])


def brought(run: Run) -> Table:
    """Each model's answers to pictures that users may bring, a column a condition.

    Digits: right answers, and in brackets right and wrong answers with `--reject-below auto`. Pictures of other things:
    the rejected share.
    """
    cells_by_model: dict[str, dict[str, str]] = {}
    for row in run.rows:
        cells = cells_by_model.setdefault(row["model"], {"%": f"`{row['model']}`"})
        if "accuracy" in row:
            accuracy, right_and_accepted = row["accuracy"], row["right"]
            wrong_and_accepted = max(0.0, 1 - right_and_accepted - row["rejected"])
            with_rejection = f"{percent(right_and_accepted, 1)}, {percent(wrong_and_accepted, 1)}"
            cells[row["condition"]] = f"{percent(accuracy, 1)} ({with_rejection})"
        else:
            cells[f"{row['condition']}, rejected"] = percent(row["rejected"], 1)
    return Table([*cells_by_model.values()])
