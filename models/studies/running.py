"""Trainings that take turns, an epoch each: a drift of the machine affects all equally.

Each run has its own random numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from models.config import ModelConfig
from models.files import write_atomically

if TYPE_CHECKING:
    from models.data import Dataset
    from models.training import Epoch, TrainingOptions

PLAN = "plan.json"


class StudyError(Exception):
    pass


@dataclass(frozen=True)
class Run:
    label: str
    config: ModelConfig
    options: TrainingOptions


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

    @property
    def training_time_s(self) -> float:
        return median(epoch.training_time_s for epoch in self.series)

    @property
    def test_time_s(self) -> float:
        return median(epoch.test_time_s for epoch in self.series)


def seeded(label: str, seed: int) -> str:
    return f"{label}-seed-{seed}" if seed else label


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
    from models.training import Diverged, train

    _check_plan(folder / PLAN, _plan(study, runs, dataset, test_batch))
    finished = {run.label: _finished(folder, run) for run in runs}
    trainings: dict[str, Iterator[Epoch]] = {}
    for run in runs:
        path, resume = folder / f"{run.label}.safetensors", (folder / f"{run.label}.resume.pt").is_file()
        epochs = train(run.config, dataset, run.options, path, resume, lambda images, loss: None, test_batch)
        unfinished = finished[run.label] < run.options.epochs
        trainings[run.label] = track(epochs, path, resume) if track and unfinished else epochs
    for number in range(1, max((run.options.epochs for run in runs), default=0) + 1):
        for run in runs:
            while finished[run.label] < min(number, run.options.epochs):
                try:
                    epoch = next(trainings[run.label])
                except Diverged:
                    finished[run.label] = run.options.epochs
                    break
                finished[run.label] = epoch.epoch
                on_epoch(run, epoch)
                if epoch.epoch == run.options.epochs:
                    next(trainings[run.label], None)  # a tracker ends its run after the last epoch
    return [_read(folder, run) for run in runs]


def _plan(study: str, runs: Sequence[Run], dataset: Dataset, test_batch: int) -> dict[str, Any]:
    """What must agree to continue."""
    from models.training_options import depends_on_epochs

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
    if not (folder / f"{run.label}.resume.pt").is_file():
        return 0
    count = len(_read(folder, run).series)
    if count > run.options.epochs:
        path = folder / f"{run.label}.json"
        raise StudyError(f"{path}: expected at most {run.options.epochs} epochs, found {count}; name another --output")
    return count


def _read(folder: Path, run: Run) -> Trained:
    from models.training import Epoch

    path = folder / f"{run.label}.json"
    if not path.exists() and not (folder / f"{run.label}.resume.pt").exists():  # diverged in its first epoch
        return Trained(run, path.with_suffix(".safetensors"), {}, ())
    try:
        metrics = json.loads(path.read_bytes())
        series = tuple(Epoch(**epoch) for epoch in metrics.pop("series"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StudyError(f"{path}: expected the series of a training, found {error!r}") from error
    return Trained(run, path.with_suffix(".safetensors"), metrics, series)
