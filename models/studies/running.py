"""Trainings that take turns, an epoch each: a drift of the machine affects all equally.

An epoch starts from the files of the one before, so a study that goes on and one that was stopped take the same way,
and one run at a time is in memory.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.config import ModelConfig
from models.files import write_atomically

if TYPE_CHECKING:
    from models.data import Dataset
    from models.train import Epoch, TrainingOptions

PLAN = "plan.json"


class StudyError(Exception):
    pass


@dataclass(frozen=True)
class Run:
    """`at`: the choice of each axis."""

    label: str
    config: ModelConfig
    options: TrainingOptions
    at: Mapping[str, str]


@dataclass(frozen=True)
class Trained:
    """A diverged run has fewer epochs, perhaps 0."""

    run: Run
    checkpoint: Path
    metrics: dict[str, Any]
    series: tuple[Epoch, ...]

    @property
    def diverged(self) -> bool:
        return len(self.series) < self.run.options.epochs

    def as_json(self) -> dict[str, Any]:
        """`test_accuracy` of runs with held-out images alone: the series of the others ends with it."""
        held_out = {"test_accuracy": self.metrics.get("test_accuracy")} if self.run.options.hold_out else {}
        return {
            "label": self.run.label,
            "at": dict(self.run.at),
            "config": asdict(self.run.config),
            "options": asdict(self.run.options),
            **held_out,
            "series": [_figures(epoch) for epoch in self.series],
        }


def _figures(epoch: Epoch) -> dict[str, Any]:
    """What pages and pictures show; the file of the training itself has the rest."""
    figures = asdict(epoch)
    del figures["class_accuracy"]
    return {name: round(value, 8) for name, value in figures.items()}


OnEpoch = Callable[[Run, "Epoch"], None]
Track = Callable[[Iterator["Epoch"], Path, bool], Iterator["Epoch"]]
"""Epochs, checkpoint, whether a run resumes -> the same epochs, as `models.tracking.track`."""


def advance(
    study: str,
    runs: Sequence[Run],
    dataset: Dataset,
    test_batch: int,
    folder: Path,
    on_epoch: OnEpoch,
    track: Track | None = None,
) -> list[Trained]:
    """Trains all `runs` in `folder` to their last epoch.

    When a run diverges, the others continue. Further runs may join. Raises StudyError for a folder with another plan or
    more epochs; TrainingError for a failed training.
    """
    from models.train import Diverged

    _check_plan(folder / PLAN, _plan(study, runs, dataset, test_batch))
    finished = {run.label: _finished(folder, run) for run in runs}
    for number in range(1, max((run.options.epochs for run in runs), default=0) + 1):
        for run in runs:
            while finished[run.label] < min(number, run.options.epochs):
                try:
                    epoch = _train_epoch(run, dataset, test_batch, folder, track)
                except Diverged:
                    finished[run.label] = run.options.epochs
                else:
                    finished[run.label] = epoch.epoch
                    on_epoch(run, epoch)
    return [_read(folder, run) for run in runs]


def _train_epoch(run: Run, dataset: Dataset, test_batch: int, folder: Path, track: Track | None) -> Epoch:
    from models.training import train

    path, resume = folder / f"{run.label}.safetensors", _state(folder, run).is_file()
    epochs = train(run.config, dataset, run.options, path, resume, test_batch=test_batch)
    first = itertools.islice(epochs, 1)
    (epoch,) = track(first, path, resume) if track else first
    return epoch


def _state(folder: Path, run: Run) -> Path:
    return folder / f"{run.label}.resume.pt"


def _plan(study: str, runs: Sequence[Run], dataset: Dataset, test_batch: int) -> dict[str, Any]:
    """What must agree to continue."""
    from models.train import depends_on_epochs

    plan: dict[str, Any] = {
        "study": study,
        "dataset": dataset.name,
        "train images": len(dataset.train_labels),
        "test images": len(dataset.test_labels),
        "test batch": test_batch,
    }
    for run in runs:
        options = asdict(run.options)
        del options["device"]
        if not depends_on_epochs(run.config, run.options):
            del options["epochs"]
        plan[run.label] = {"config": asdict(run.config), "options": options}
    converted: dict[str, Any] = json.loads(json.dumps(plan))  # tuples become lists
    return converted


def _check_plan(path: Path, plan: dict[str, Any]) -> None:
    """Also refuses fewer runs: their result would replace the larger study."""
    if path.exists():
        try:
            earlier = dict(json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise StudyError(f"{path}: expected the plan of a study, found {error}") from error
        joining = {name for name, value in plan.items() if isinstance(value, dict) and name not in earlier}
        wanted = dict(_leaves({name: value for name, value in plan.items() if name not in joining}))
        there = dict(_leaves(earlier))
        for name in [*wanted, *there]:
            if (expected := wanted.get(name, "none")) != (had := there.get(name, "none")):
                raise StudyError(f"{path}: expected {name} {expected}, found {had}; name another --output")
    write_atomically(path, json.dumps(plan, indent=2).encode())


def _leaves(plan: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in plan.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", value


def _finished(folder: Path, run: Run) -> int:
    if not _state(folder, run).is_file():
        return 0
    count = len(_read(folder, run).series)
    if count > run.options.epochs:
        path = folder / f"{run.label}.json"
        raise StudyError(f"{path}: expected at most {run.options.epochs} epochs, found {count}; name another --output")
    return count


def _read(folder: Path, run: Run) -> Trained:
    from models.train import Epoch

    path = folder / f"{run.label}.json"
    if not path.exists() and not _state(folder, run).exists():  # diverged in its first epoch
        return Trained(run, path.with_suffix(".safetensors"), {}, ())
    try:
        metrics = json.loads(path.read_bytes())
        series = tuple(Epoch(**epoch) for epoch in metrics.pop("series"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StudyError(f"{path}: expected the series of a training, found {error!r}") from error
    return Trained(run, path.with_suffix(".safetensors"), metrics, series)
