"""Writes the table and the pictures of a study's result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.reporting.plotting import Line, Picture, line, look_of
from benchmarks.reporting.tables.table import Cells, Table
from benchmarks.studies import study_writer
from benchmarks.studies.grids import STUDIES
from benchmarks.studies.results import by_epoch, spread, time_s
from benchmarks.studies.study_writer import Result, footnote

JsonRun = Mapping[str, Any]
"""One of a result's `runs`."""

DRAWN = {
    "test_accuracy": ("Test accuracy", "images right (%)", "accuracy", 100),
    "training_loss": ("Training loss", "cross-entropy (nats)", "log", 1),
}
"""Figure -> title, label, scale and factor of its picture."""


def write(folder: Path, result: Result) -> list[Path]:
    """Writes the study's JSON file, page and pictures to `folder`, and returns their paths."""
    held_out = result["runs"][0]["options"]["hold_out"] if result["runs"] else 0
    note = f"{held_out:,} training images are held out; the test images are looked at once, after the last epoch."
    figures = {name: picture.draw() for name, picture in pictures(result).items()}
    choices = [f"{axis} {choice}" for axis, choice in STUDIES[result["study"]].reference.items()]
    reference = f" Reference: {', '.join(choices)}." if choices else ""
    title = f"Last epoch: mean, lowest and highest seed; medians of the times.{reference}"
    return study_writer.write(folder, result, {title: summary(result)}, figures, [note] if held_out else [])


def summary(result: Result) -> Table:
    """A row for each network: its seeds' last epochs, medians of the times, and the reference's times over them.

    Diverged runs count in no accuracy.
    """
    study, groups = STUDIES[result["study"]], _groups(result)
    held_out = any(run["options"]["hold_out"] for run in result["runs"])
    rows: list[Cells] = []
    for seeds in groups.values():
        finished = [run for run in seeds if _is_finished(run)]
        cells = {**seeds[0]["at"], "seeds": str(len(seeds)), "diverged": str(len(seeds) - len(finished))}
        if held_out:
            cells["held-out images right %"] = _spread(map(_last_accuracy, finished))
        cells["test images right %"] = _spread(map(_test_accuracy, finished))
        cells["largest fall, points"] = f"{max(map(_largest_fall, finished)):.1f}" if finished else ""
        losses = [run["series"][-1]["training_loss"] for run in finished]
        cells["last loss"] = f"{mean(losses):,.4f}" if losses else ""
        times_s = {part: _time_s(seeds, part) for part in ("training", "test")}
        for part, column in (("training", "training an epoch, s"), ("test", "test, s")):
            cells[column] = f"{time_s:,.2f}" if (time_s := times_s[part]) else ""
        if study.reference:
            reference = groups.get(tuple({**seeds[0]["at"], **study.reference}.values()), [])
            for part, time_s in times_s.items():
                reference_s = _time_s(reference, part)
                ratio = f"{reference_s / time_s:,.2f}" if reference_s and time_s else ""
                cells[f"reference's {part} time over it"] = ratio
        rows.append(cells)
    return Table(rows, len(result["runs"][0]["at"]))


def _groups(result: Result) -> dict[tuple[str, ...], list[JsonRun]]:
    """Choices of the axes -> the runs with these choices, one for each seed."""
    groups: dict[tuple[str, ...], list[JsonRun]] = {}
    for run in result["runs"]:
        groups.setdefault(tuple(run["at"].values()), []).append(run)
    return groups


def _is_finished(run: JsonRun) -> bool:
    """Whether the run has all its epochs: a diverged run has fewer."""
    return len(run["series"]) == int(run["options"]["epochs"])


def _last_accuracy(run: JsonRun) -> float:
    """Of the last epoch, in %: on held-out images if the run has them, else on test images."""
    return 100 * float(run["series"][-1]["test_accuracy"])


def _test_accuracy(run: JsonRun) -> float:
    """In %. A run with held-out images measures it once, after the last epoch."""
    accuracy = run.get("test_accuracy")
    return _last_accuracy(run) if accuracy is None else 100 * float(accuracy)


def _largest_fall(run: JsonRun) -> float:
    """The largest fall of accuracy below an earlier epoch, in points."""
    best = fall = 0.0
    for epoch in run["series"]:
        fall, best = max(fall, best - epoch["test_accuracy"]), max(best, epoch["test_accuracy"])
    return 100 * fall


def _time_s(runs: Sequence[JsonRun], part: str) -> float | None:
    """The median over the runs' epochs; None without epochs. `part`: training or test."""
    trained = [run["series"] for run in runs if run["series"]]
    return time_s(trained, part) if trained else None


def _spread(percents: Iterable[float]) -> str:
    return spread(values, 2) if (values := list(percents)) else ""


def pictures(result: Result) -> dict[str, Picture]:
    """Name -> picture: accuracy and loss by epoch, or the last accuracy along an axis of three values or more."""
    study, axes = STUDIES[result["study"]], list(result["runs"][0]["at"])
    panel = axes[0] if len(axes) > 1 else ""
    if study.x == "epoch":
        return {
            "accuracy": _picture(result, panel, "epoch", "test_accuracy"),
            "loss": _picture(result, panel, "epoch", "training_loss"),
        }
    x_values = {run["at"][study.x] for run in result["runs"] if run["series"]}
    return {"accuracy": _picture(result, panel, study.x, "test_accuracy")} if len(x_values) > 2 else {}


def _picture(result: Result, panel: str, x: str, figure: str) -> Picture:
    """The lines of `figure`, a field of an epoch: by epoch, or in the last epochs along the axis `x`.

    `panel`: the axis whose choices have a panel each; empty for a single panel. By epoch a line ends at the last epoch
    that all its seeds have. Along an axis diverged runs are left out.
    """
    title, y, scale, factor = DRAWN[figure]
    lines: dict[tuple[str, ...], dict[float, list[float]]] = {}
    first_runs: dict[tuple[str, ...], JsonRun] = {}
    for at, seeds in _groups(result).items():
        key = tuple(choice for axis, choice in zip(seeds[0]["at"], at, strict=True) if axis != x)
        points = lines.setdefault(key, {})
        first_runs.setdefault(key, seeds[0])
        if x == "epoch":
            points.update(enumerate(by_epoch([run["series"] for run in seeds], figure, factor), 1))
        elif last_values := [factor * run["series"][-1][figure] for run in seeds if _is_finished(run)]:
            points[float(seeds[0]["at"][x])] = last_values
    panels: dict[str, list[Line]] = {}
    for key, points in lines.items():
        run = first_runs[key]
        model, at = run["config"]["model"], run["at"]
        label = [
            look_of(model).name,
            *(f"{axis} {at[axis]}" for axis in at if axis not in (panel, x) and at[axis] != model),
        ]
        drawn = line(model, list(points), list(points.values()), ", ".join(label), hollow=at.get("depth") == "1")
        panels.setdefault(f"{panel} {at[panel]}" if panel else "", []).append(drawn)
    return Picture(title, footnote(result), x, y, scale, panels)
