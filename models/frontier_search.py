"""Searches the frontier of accuracy and speed: trials -> the next geometry, and their file.

Ax maximises held-out accuracy and the logarithm of images a second by noisy expected hypervolume improvement (Daulton
et al., "Parallel Bayesian Optimization", 2021).
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.config import ModelConfig
from models.files import write_atomically
from models.search import Space, ax_client, quiet, read_trials

if TYPE_CHECKING:
    from models.data import Dataset

DEPTHS = (1, 4)
HEADS_FEATURES = 16  # per head; narrow heads cost little once absorbed
CHOICES = {"dim": (32, 48, 64, 96, 128), "heads": (2, 4, 8), "last_heads": (4, 8, 16, 32), "mlp_dim": (64, 128, 256)}

LARGEST = 1e12  # of a duration in seconds, and of images a second


@dataclass(frozen=True)
class FrontierSearch:
    dataset: str
    epochs: int
    train_images: int
    held_out_images: int
    seed: int


@dataclass(frozen=True)
class Geometry:
    depth: int
    dim: int
    heads: int
    last_heads: int
    mlp_dim: int

    def config(self, data: Dataset) -> ModelConfig:
        from dataclasses import replace

        return replace(
            data.model_config("vitbn", self.depth),
            dim=self.dim,
            heads=self.heads,
            dim_head=HEADS_FEATURES,
            mlp_dim=self.mlp_dim,
            class_attention=(self.last_heads, HEADS_FEATURES),
        )


@dataclass(frozen=True)
class FrontierTrial:
    """Held-out `accuracy` in [0, 1] and the rewritten file's `images_per_s`, or an `error`."""

    geometry: Geometry
    accuracy: float | None
    images_per_s: float | None
    duration_s: float
    error: str | None = None


def propose(search: FrontierSearch, trials: Sequence[FrontierTrial]) -> Geometry:
    worst = min((trial.accuracy for trial in trials if trial.accuracy is not None), default=0.0)
    slowest = min((trial.images_per_s for trial in trials if trial.images_per_s is not None), default=1.0)
    with quiet():
        from botorch.acquisition.multi_objective import logei

        # Else BoTorch compiles C++ for minutes, or waits for ever after a killed compilation.
        logei._load_attempted = True
        client = ax_client(search.seed, _space(), "accuracy, log_speed", len(trials))
        for trial in trials:
            index = client.attach_trial(parameters=asdict(trial.geometry))
            accuracy = worst if trial.accuracy is None else trial.accuracy
            speed = slowest if trial.images_per_s is None else trial.images_per_s
            client.complete_trial(index, raw_data={"accuracy": accuracy, "log_speed": math.log10(speed)})
        (proposed,) = client.get_next_trials(max_trials=1).values()
    return Geometry(**{name: int(value) for name, value in proposed.items()})


def front(trials: Sequence[FrontierTrial]) -> list[FrontierTrial]:
    """Trials that no other beats in accuracy and speed, fastest first."""
    finished = [trial for trial in trials if trial.error is None]
    by_speed = sorted(finished, key=lambda trial: (trial.images_per_s or 0.0, trial.accuracy or 0.0), reverse=True)
    best, kept = -1.0, []
    for trial in by_speed:
        if (trial.accuracy or 0.0) > best:
            best = trial.accuracy or 0.0
            kept.append(trial)
    return kept


def write(path: Path, search: FrontierSearch, trials: Sequence[FrontierTrial], environment: dict[str, Any]) -> None:
    rows = [{"trial": number, **asdict(trial)} for number, trial in enumerate(trials, 1)]
    numbers = [trials.index(trial) + 1 for trial in front(trials)]
    content = {"search": _as_json(search), "environment": environment, "frontier": numbers, "trials": rows}
    write_atomically(path, json.dumps(content, indent=2).encode())


def read(path: Path, search: FrontierSearch) -> list[FrontierTrial]:
    return read_trials(path, _as_json(search), _trial, {})


def _trial(row: dict[str, Any]) -> FrontierTrial:
    geometry = Geometry(**row["geometry"])
    low, high = DEPTHS
    allowed = {"depth": range(low, high + 1), **CHOICES}
    for name, values in allowed.items():
        if type(getattr(geometry, name)) is not int or getattr(geometry, name) not in values:
            raise ValueError(f"{name} {getattr(geometry, name)}")
    trial = FrontierTrial(geometry, *(row[name] for name in ("accuracy", "images_per_s", "duration_s", "error")))
    ranges = {"duration_s": (0.0, LARGEST)}
    if trial.error is None:
        ranges |= {"accuracy": (0.0, 1.0), "images_per_s": (1 / LARGEST, LARGEST)}
    for name, (least, most) in ranges.items():
        if not (type(row[name]) is float and least <= row[name] <= most):
            raise ValueError(f"{name} {row[name]}")
    if trial.error is not None and (not isinstance(trial.error, str) or trial.accuracy is not None):
        raise ValueError(f"accuracy {trial.accuracy}, error {trial.error}")
    return trial


def _space() -> Space:
    from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

    ordered = [ChoiceParameterConfig(name, list(values), "int", is_ordered=True) for name, values in CHOICES.items()]
    return [RangeParameterConfig("depth", DEPTHS, "int"), *ordered]


def _as_json(search: FrontierSearch) -> dict[str, Any]:
    ranges = {"depths": list(DEPTHS), **{name: list(values) for name, values in CHOICES.items()}}
    return asdict(search) | ranges
