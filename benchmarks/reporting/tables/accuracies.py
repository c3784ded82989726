"""Tables of accuracies."""

from __future__ import annotations

from benchmarks.measure.run import Run
from benchmarks.reporting.tables.table import Table, percent


def accuracy(run: Run) -> Table:
    rows = [
        {"model": row["model"], "runtime": row["runtime"], "test accuracy %": percent(row["accuracy"])}
        | {"same class as PyTorch %": percent(row["agreement"])}
        | {"largest error of a logit": f"{row['max_abs_error']:.1e}"}
        for row in run.rows
    ]
    return Table(rows, 2)


def conditions(run: Run) -> Table:
    every: dict[str, dict[str, str]] = {}
    for row in run.rows:
        cells = every.setdefault(row["model"], {"right, %": f"`{row['model']}`"})
        cells[row["condition"]] = percent(row["accuracy"])
    return Table([*every.values()])


def brought(run: Run) -> Table:
    """Digits: right answers; in brackets right and wrong answers with `--reject-below auto`. Others: rejected share."""
    every: dict[str, dict[str, str]] = {}
    for row in run.rows:
        cells = every.setdefault(row["model"], {"%": f"`{row['model']}`"})
        if "accuracy" in row:
            right, kept = row["accuracy"], row["right"]
            wrong = max(0.0, 1 - kept - row["rejected"])
            cells[row["condition"]] = f"{percent(right, 1)} ({percent(kept, 1)}, {percent(wrong, 1)})"
        else:
            cells[f"{row['condition']}, rejected"] = percent(row["rejected"], 1)
    return Table([*every.values()])
