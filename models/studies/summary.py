"""The table and the pictures of a study's JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from models.plots import results
from models.plots.curves import Line, Picture
from models.plots.figures import NAMES
from models.plots.results import Column, Result, footnote, table
from models.studies.grids import STUDIES

JsonRun = Mapping[str, Any]


def write(folder: Path, result: Result) -> list[Path]:
    held_out = result["runs"][0]["options"]["hold_out"] if result["runs"] else 0
    note = f"{held_out:,} training images are held out; the test images are looked at once, after the last epoch."
    page = {"tables": [summary(result)], "notes": [note] if held_out else []}
    return results.write(folder, result, page, {name: each.draw() for name, each in pictures(result).items()})


def groups(result: Result) -> dict[tuple[str, ...], list[JsonRun]]:
    """The seeds of each network."""
    by: dict[tuple[str, ...], list[JsonRun]] = {}
    for run in result["runs"]:
        by.setdefault(tuple(run["at"].values()), []).append(run)
    return by


def summary(result: Result) -> dict[str, Any]:
    """A row for each network: its seeds' last epochs, and medians of the times.

    Diverged runs have no accuracy. With t the median time of the reference over that of the network, as `t ratio`.
    """
    every, study = groups(result), STUDIES[result["study"]]
    held_out = any(run["options"]["hold_out"] for run in result["runs"])
    accuracies = [*([("held-out images right %", _last)] if held_out else []), ("test images right %", _test)]
    columns = [
        *(Column(option) for option in result["runs"][0]["at"]),
        *(Column(name, 0) for name in ("seeds", "diverged")),
        *(Column(name) for name, _ in accuracies),
        Column("largest fall, points", 1),
        Column("last loss", 4),
        *(Column(f"{part} s", 2) for part in ("training an epoch,", "test,")),
        *(Column(f"reference's {part} time over it", 2) for part in ("training", "test") if study.reference),
    ]
    rows = []
    for at, seeds in every.items():
        done = [run for run in seeds if len(run["series"]) == run["options"]["epochs"]]
        other = dict(zip(seeds[0]["at"], at, strict=True)) | study.reference
        times = [_time(seeds, part) for part in ("training_time_s", "test_time_s")]
        reference = [_time(every.get(tuple(other.values()), []), part) for part in ("training_time_s", "test_time_s")]
        rows.append(
            [
                *at,
                len(seeds),
                len(seeds) - len(done),
                *(_spread([figure(run) for run in done]) for _, figure in accuracies),
                max(map(_fall, done), default=None),
                mean(run["series"][-1]["training_loss"] for run in done) if done else None,
                *times,
                *(theirs / own if theirs and own else None for theirs, own in zip(reference, times, strict=True)),
            ][: len(columns)]
        )
    compared = f" Reference: {', '.join(f'{k} {v}' for k, v in study.reference.items())}." if study.reference else ""
    return table(f"Last epoch: mean, lowest and highest seed; medians of the times.{compared}", columns, rows)


def _last(run: JsonRun) -> float:
    return 100 * float(run["series"][-1]["test_accuracy"])


def _test(run: JsonRun) -> float:
    accuracy = run.get("test_accuracy")
    return _last(run) if accuracy is None else 100 * float(accuracy)


def _fall(run: JsonRun) -> float:
    """Below an earlier epoch."""
    best = fall = 0.0
    for epoch in run["series"]:
        fall, best = max(fall, best - epoch["test_accuracy"]), max(best, epoch["test_accuracy"])
    return 100 * fall


def _time(runs: Sequence[JsonRun], part: str) -> float | None:
    times = [float(epoch[part]) for run in runs for epoch in run["series"]]
    return median(times) if times else None


def _spread(percents: Sequence[float]) -> str | None:
    if not percents:
        return None
    several = f" ({min(percents):.2f} to {max(percents):.2f})" if len(percents) > 1 else ""
    return f"{mean(percents):.2f}{several}"


def pictures(result: Result) -> dict[str, Picture]:
    """Accuracy and loss by epoch, or the last accuracy along an axis of three values or more."""
    study = STUDIES[result["study"]]
    own = result["runs"][0]["at"]
    panel = study.panel or (next(iter(own)) if len(own) > 1 else "")
    if study.x == "epoch":
        return {
            "accuracy": _by_epoch(result, panel, "Test accuracy", "images right (%)", "accuracy", _percent),
            "loss": _by_epoch(result, panel, "Training loss", "cross-entropy (nats)", "log", _loss),
        }
    ended = {run["at"][study.x] for run in result["runs"] if run["series"]}
    return {"accuracy": _along(result, panel, study.x)} if len(ended) > 2 else {}


def _percent(epoch: Mapping[str, Any]) -> float:
    return 100 * float(epoch["test_accuracy"])


def _loss(epoch: Mapping[str, Any]) -> float:
    return float(epoch["training_loss"])


def _by_epoch(
    result: Result, panel: str, title: str, y: str, scale: str, figure: Callable[[Mapping[str, Any]], float]
) -> Picture:
    panels: dict[str, list[Line]] = {}
    for seeds in groups(result).values():
        by_epoch = zip(*(run["series"] for run in seeds), strict=False)
        columns = [[figure(epoch) for epoch in epochs] for epochs in by_epoch]
        line = _line(seeds[0], range(1, len(columns) + 1), columns, [panel])
        panels.setdefault(_title(seeds[0], panel), []).append(line)
    return Picture(title, footnote(result), "epoch", y, scale, panels)


def _along(result: Result, panel: str, axis: str) -> Picture:
    """Without diverged runs."""
    lines: dict[tuple[str, ...], list[tuple[JsonRun, list[float]]]] = {}
    for seeds in groups(result).values():
        key = tuple(name for option, name in seeds[0]["at"].items() if option != axis)
        if ends := [_last(run) for run in seeds if len(run["series"]) == run["options"]["epochs"]]:
            lines.setdefault(key, []).append((seeds[0], ends))
    panels: dict[str, list[Line]] = {}
    for points in lines.values():
        run = points[0][0]
        xs = [float(each["at"][axis]) for each, _ in points]
        line = _line(run, xs, [ends for _, ends in points], [panel, axis])
        panels.setdefault(_title(run, panel), []).append(line)
    return Picture("Test accuracy", footnote(result), axis, "images right (%)", "accuracy", panels)


def _title(run: JsonRun, panel: str) -> str:
    return f"{panel} {run['at'][panel]}" if panel else ""


def _line(run: JsonRun, xs: Sequence[float], columns: Sequence[Sequence[float]], unsaid: Sequence[str]) -> Line:
    """Named by the model and the choices of the axes that are not `unsaid`; hollow for one block."""
    low, high = ([f(c) for c in columns] if any(len(c) > 1 for c in columns) else [] for f in (min, max))
    model = run["config"]["model"]
    others = [f"{axis} {name}" for axis, name in run["at"].items() if axis not in unsaid and name != model]
    label = ", ".join([NAMES[model], *others])
    return Line(model, list(xs), [mean(c) for c in columns], low, high, label, hollow=run["at"].get("depth") == "1")
