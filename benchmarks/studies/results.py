"""Reads the committed results of the studies, and computes figures of networks from their seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.studies.study_writer import StudyError
from common.files import reason

CHANCE = [{"test_accuracy": 0.1}]  # the series of a run without epochs

Seeds = list[list[dict[str, Any]]]
"""For each seed of a network the series of its epochs."""
Key = tuple[str, str, int | None, float | None]
"""Which network: path of the result without its suffix, model, depth, learning rate; None for any."""
Row = tuple[Any, ...]
"""A cell is a text, or a tuple: a function from the seeds of networks to a text, and the keys of these networks."""


class Results:
    """The JSON files in `folder`, each read once. Raises StudyError for other content and for missing runs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._contents: dict[str, dict[str, Any]] = {}

    def __getitem__(self, study: str) -> dict[str, Any]:
        """The content of `folder`/`study`.json."""
        if study not in self._contents:
            path = self._folder / f"{study}.json"
            try:
                self._contents[study] = content = json.loads(path.read_bytes())
                content["scope"], content["runs"][0]
            except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
                raise StudyError(f"{path}: expected the result of a study, found {reason(error)}") from error
        return self._contents[study]

    def seeds(self, key: Key) -> Seeds:
        """The series of the network's seeds. A run that diverged in its first epoch counts as chance."""
        study, model, depth, rate = key
        seeds = [
            run["series"] or CHANCE
            for run in self[study]["runs"]
            if run["config"]["model"] == model
            and depth in (None, run["config"]["depth"])
            and rate in (None, run["options"]["lr"])
        ]
        if not seeds:
            raise StudyError(f"{study}: expected runs of {model}, depth {depth}, rate {rate}, found none")
        return seeds

    def size(self, study: str) -> str:
        """The study's epochs, training images and seeds, and the computed rows of the last block, as a text."""
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
        """The cells as texts, and the size of the last cell's study if a cell is computed."""
        texts = [cell if isinstance(cell, str) else cell[0](*map(self.seeds, cell[1:])) for cell in row]
        studies = [key[0] for cell in row if not isinstance(cell, str) for key in cell[1:]]
        return [*texts, *map(self.size, studies[-1:])]


def last_accuracies(seeds: Seeds) -> list[float]:
    """Each seed's test accuracy after the last epoch, in %."""
    return [100 * series[-1]["test_accuracy"] for series in seeds]


def by_epoch(seeds: Seeds, figure: str, factor: float = 1) -> list[list[float]]:
    """For each epoch that all seeds have, the values of the seeds times `factor`. `figure`: a field of an epoch."""
    return [[factor * epoch[figure] for epoch in epochs] for epochs in zip(*seeds, strict=False)]


def spread(values: Sequence[float], decimals: int = 1) -> str:
    """The mean, and the range if there are several values."""
    value_range = f" ({min(values):.{decimals}f} to {max(values):.{decimals}f})" if len(values) > 1 else ""
    return f"{mean(values):.{decimals}f}{value_range}"


def last(seeds: Seeds) -> str:
    """The test accuracy after the last epoch, in %."""
    return spread(last_accuracies(seeds))


def first(seeds: Seeds) -> str:
    """The test accuracy after the first epoch, in %."""
    return last([series[:1] for series in seeds])


def average(seeds: Seeds) -> str:
    """The mean test accuracy of all epochs, in %: a network that converges sooner has a higher mean."""
    return spread([100 * mean(epoch["test_accuracy"] for epoch in series) for series in seeds])


def last_ten(seeds: Seeds) -> str:
    """The range of the test accuracies in the last ten epochs, in %."""
    values = [100 * epoch["test_accuracy"] for series in seeds for epoch in series[-10:]]
    return f"{min(values):.1f} to {max(values):.1f}"


def lead(seeds: Seeds, others: Seeds) -> str:
    """By how many points the last accuracy of `others` is higher."""
    return f"{lead_points(seeds, others):+.1f}"


def lead_points(seeds: Seeds, others: Seeds) -> float:
    return mean(last_accuracies(others)) - mean(last_accuracies(seeds))


def from_to(seeds: Seeds, others: Seeds) -> str:
    """The last accuracies of two networks, in %."""
    return f"{mean(last_accuracies(seeds)):.1f} to {mean(last_accuracies(others)):.1f}"


def critical_depth(first_depth: int) -> Callable[..., str]:
    """A function that says from which depth on ViTBNFFN leads ViT by 5 points or more.

    Its arguments: the seeds of ViT and of ViTBNFFN at `first_depth`, at the next depth, and so on.
    """

    def figure(*seeds: Seeds) -> str:
        leads = [lead_points(vit, vitbnffn) for vit, vitbnffn in zip(seeds[::2], seeds[1::2], strict=True)]
        depths = [first_depth + i for i in range(len(leads)) if min(leads[i:]) >= 5]
        return f"depth {depths[0]}" if depths else f"no depth up to {first_depth + len(leads) - 1}"

    return figure


def time_s(seeds: Seeds, part: str) -> float:
    """The median over all epochs of all seeds. `part`: training or test."""
    return float(median(epoch[f"{part}_time_s"] for series in seeds for epoch in series))


def training_seconds(seeds: Seeds) -> str:
    """The time to train an epoch, in s."""
    return f"{time_s(seeds, 'training'):.2f}"


def slowest_over_quickest(*networks: Seeds) -> str:
    """How much longer than the quickest network the slowest trains, in %."""
    times_s = [time_s(seeds, "training") for seeds in networks]
    return f"{100 * (max(times_s) / min(times_s) - 1):.0f} % more"


def training_ratio(vit: Seeds, other: Seeds) -> str:
    """ViT's training time over the other network's."""
    return f"{time_s(vit, 'training') / time_s(other, 'training'):.2f}"


def test_ratio(vit: Seeds, other: Seeds) -> str:
    """ViT's test time over the other network's."""
    return f"{time_s(vit, 'test') / time_s(other, 'test'):.2f}"


def training_time_saved(*seeds: Seeds) -> str:
    """The training time saved against ViT, in %. `seeds`: of ViT and of the other network, at each learning rate."""
    pairs = zip(seeds[::2], seeds[1::2], strict=True)
    return f"{100 * mean(1 - time_s(other, 'training') / time_s(vit, 'training') for vit, other in pairs):.0f}"
