"""Reads the committed results of the studies, and computes figures of a network's seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.studies.study_files import StudyError

CHANCE = [{"test_accuracy": 0.1}]  # a run that diverged in its first epoch

Seeds = list[list[dict[str, Any]]]
"""The series of each seed of a network."""
Key = tuple[str, str, int | None, float | None]
"""File of the result, model, depth, rate; None for any."""
Row = tuple[Any, ...]
"""A cell is a text, or a tuple of a function that gives a text, and the keys of its arguments."""


class Results:
    """The JSON files in `folder`, each read once. Raises StudyError for other content and for runs that are missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read: dict[str, dict[str, Any]] = {}

    def __getitem__(self, study: str) -> dict[str, Any]:
        if study not in self.read:
            path = self.folder / f"{study}.json"
            try:
                self.read[study] = content = json.loads(path.read_bytes())
                content["scope"], content["runs"][0]
            except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
                raise StudyError(f"{path}: expected the result of a study, found {error!r}") from error
        return self.read[study]

    def of(self, key: Key) -> Seeds:
        study, model, depth, rate = key
        chosen = [
            run["series"] or CHANCE
            for run in self[study]["runs"]
            if run["config"]["model"] == model
            and depth in (None, run["config"]["depth"])
            and rate in (None, run["options"]["lr"])
        ]
        if not chosen:
            raise StudyError(f"{study}: expected runs of {model}, depth {depth}, rate {rate}, found none")
        return chosen

    def size(self, study: str) -> str:
        scope, runs = self[study]["scope"], self[study]["runs"]
        if "size" in scope:
            return str(scope["size"])
        seeds = len({run["options"]["seed"] for run in runs})
        parts = [f"{scope['epochs']} epochs", f"{scope['train_images']:,} images"]
        parts.append(f"{seeds} seeds" if seeds > 1 else "1 seed")
        if runs[0]["config"]["model"].startswith("vit"):
            parts.append("CLS row" if runs[0]["options"].get("last_block") == "row" else "whole")
        return ", ".join(parts)

    def row(self, row: Row) -> list[str]:
        """The cells as texts, and the size of the study of the last figure."""
        texts = [cell if isinstance(cell, str) else cell[0](*map(self.of, cell[1:])) for cell in row]
        studies = [key[0] for cell in row if not isinstance(cell, str) for key in cell[1:]]
        return [*texts, *map(self.size, studies[-1:])]


def ends(seeds: Seeds) -> list[float]:
    return [100 * series[-1]["test_accuracy"] for series in seeds]


def by_epoch(seeds: Seeds, figure: str, factor: float = 1) -> list[list[float]]:
    """The seeds' values in each epoch, up to the last epoch that all seeds have."""
    return [[factor * epoch[figure] for epoch in epochs] for epochs in zip(*seeds, strict=False)]


def spread(values: Sequence[float], decimals: int = 1) -> str:
    several = f" ({min(values):.{decimals}f} to {max(values):.{decimals}f})" if len(values) > 1 else ""
    return f"{mean(values):.{decimals}f}{several}"


def last(seeds: Seeds) -> str:
    return spread(ends(seeds))


def first(seeds: Seeds) -> str:
    return last([series[:1] for series in seeds])


def average(seeds: Seeds) -> str:
    """The mean accuracy of all epochs, which is higher for a network that converges sooner."""
    return spread([100 * mean(epoch["test_accuracy"] for epoch in series) for series in seeds])


def last_ten(seeds: Seeds) -> str:
    values = [100 * epoch["test_accuracy"] for series in seeds for epoch in series[-10:]]
    return f"{min(values):.1f} to {max(values):.1f}"


def lead(seeds: Seeds, others: Seeds) -> str:
    """By how many points the last accuracy of `others` is higher."""
    return f"{mean(ends(others)) - mean(ends(seeds)):+.1f}"


def from_to(seeds: Seeds, others: Seeds) -> str:
    return f"{mean(ends(seeds)):.1f} to {mean(ends(others)):.1f}"


def critical(first_depth: int) -> Callable[..., str]:
    """A figure of the seeds of ViT and ViTBNFFN, depth by depth: from which depth on ViTBNFFN leads by 5 points."""

    def figure(*seeds: Seeds) -> str:
        leads = [mean(ends(other)) - mean(ends(vit)) for vit, other in zip(seeds[::2], seeds[1::2], strict=True)]
        depths = [first_depth + i for i in range(len(leads)) if min(leads[i:]) >= 5]
        return f"depth {depths[0]}" if depths else f"no depth up to {first_depth + len(leads) - 1}"

    return figure


def time_s(seeds: Seeds, part: str) -> float:
    return float(median(epoch[f"{part}_time_s"] for series in seeds for epoch in series))


def seconds(seeds: Seeds) -> str:
    return f"{time_s(seeds, 'training'):.2f}"


def slowest(*seeds: Seeds) -> str:
    times = [time_s(each, "training") for each in seeds]
    return f"{100 * (max(times) / min(times) - 1):.0f} % more"


def training_ratio(vit: Seeds, other: Seeds) -> str:
    return f"{time_s(vit, 'training') / time_s(other, 'training'):.2f}"


def test_ratio(vit: Seeds, other: Seeds) -> str:
    return f"{time_s(vit, 'test') / time_s(other, 'test'):.2f}"


def saved(*seeds: Seeds) -> str:
    """The training time saved against ViT in %. `seeds`: of ViT and the other network, rate by rate."""
    pairs = zip(seeds[::2], seeds[1::2], strict=True)
    return f"{100 * mean(1 - time_s(other, 'training') / time_s(vit, 'training') for vit, other in pairs):.0f}"
