"""Carries out a study from its grid to its result: the trainings take turns, an epoch each.

In: a `Study` and its images. Out: the result, with every run's config, options and series of epochs. Turns spread a
drift of the machine's speed over all runs. Every epoch starts from the files of the epoch before. So a stopped study
continues as if it had never stopped, and only one run is in memory.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.studies.grids import Extent, Fields, Study
from benchmarks.studies.study_writer import TIMING, WITH_TEACHER_CACHE, Result, StudyError, result
from common.files import reason, write_atomically
from models.catalog import SHIPPED, relative, shipped
from models.networks.config import ConfigError, ModelConfig

if TYPE_CHECKING:
    from models.data import Dataset
    from models.training.recipe import Epoch, TrainingOptions
    from models.training.tracking import Epochs

PLAN = "plan.json"
FIGURES = ("epoch", "training_time_s", "test_time_s", "training_loss", "test_accuracy")


@dataclass(frozen=True)
class Run:
    """A training of a study. `label`: names its files. `at`: option of an axis -> the run's choice."""

    label: str
    config: ModelConfig
    options: TrainingOptions
    at: Mapping[str, str]


OnEpoch = Callable[[Run, "Epoch"], None]
Track = Callable[["Epochs", Path, bool], "Epochs"]
"""`models.training.tracking.track` or its like: epochs, checkpoint, whether the run resumes -> the same epochs."""


def images_and_scope(
    study: Study,
    dataset: Dataset,
    quick: bool = False,
    epochs: int | None = None,
    train_images: int | None = None,
    seeds: int = 1,
) -> tuple[Dataset, dict[str, Any]]:
    """The images in use, and the result's `scope`, whose `reduced` says in words how much of the full study is run.

    `epochs` and `train_images` replace those of the full or, with `quick`, the quick study. Raises StudyError for more
    images than there are.
    """
    full = Extent(study.epochs, len(dataset.train_labels), len(dataset.test_labels))
    if (train_images or 0) > full.train_images:
        raise StudyError(f"{dataset.name}: expected at most {full.train_images} images, found {train_images}")
    default = study.quick if quick else full
    train = min(train_images or default.train_images, full.train_images)
    extent = Extent(epochs or default.epochs, train, min(default.test_images, full.test_images))
    counts = zip(("epochs", "training images", "test images"), extent, full, strict=True)
    parts = [f"{count:,} of {full_count:,} {unit}" for unit, count, full_count in counts if count < full_count]
    scope = {
        "dataset": dataset.name,
        "train_images": extent.train_images,
        "test_images": extent.test_images,
        "test_batch": study.test_batch,
        "epochs": extent.epochs,
        "seeds": seeds,
        "reduced": ", ".join(parts),
    }
    return dataset.first(extent.train_images, extent.test_images), scope


def runs(
    study: Study,
    dataset: Dataset,
    scope: Mapping[str, Any],
    options: Fields,
    chosen: Mapping[str, Sequence[str]] | None = None,
) -> list[Run]:
    """All runs of the study, in the order of its axes, seed by seed.

    `options`: fields of all runs. `chosen`: option of an axis -> names of choices; by default, and if empty, all.
    """
    names = [
        [name for name in axis if not (chosen or {}).get(option) or name in (chosen or {})[option]]
        for option, axis in study.axes.items()
    ]
    return [
        run_at(
            study, dataset, {**options, "epochs": scope["epochs"], "seed": seed}, dict(zip(study.axes, at, strict=True))
        )
        for seed in range(scope["seeds"])
        for at in itertools.product(*names)
    ]


def run_at(study: Study, dataset: Dataset, options: Fields, at: Mapping[str, str]) -> Run:
    """The run with the choices `at`. Raises StudyError for options that no training has."""
    from models.training.recipe import configure

    fields: Fields = dict(study.fixed)
    for option, name in at.items():
        fields |= study.axes[option][name]
    if "hold_out" in fields:
        fields["hold_out"] = min(fields["hold_out"], len(dataset.train_labels) // 12)
    if fields.get("teacher") in SHIPPED:
        fields["teacher"] = str(relative(shipped(fields["teacher"])))
    try:
        if set_by_study := fields.keys() & {"epochs", "seed", "device"}:
            raise TypeError(f"{min(set_by_study)}, which the study sets")
        config, training = configure(dataset, {"model": "vitbn", "batch_size": 100, **options, **fields})
    except (TypeError, ConfigError) as error:
        raise StudyError(f"expected options of models/train.py, found {error}") from error
    parts = [name if name[0].isalpha() else f"{option}-{name}" for option, name in reversed([*at.items()])]
    if training.seed:
        parts.append(f"seed-{training.seed}")
    return Run("-".join(parts), config, training, at)


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Flushes denormal numbers to zero: with them a network whose values vanish would take ten times as long."""
    import numpy as np
    import torch

    for dtype in (np.float32, np.float64):
        np.finfo(dtype)  # NumPy caches these limits; it would warn if it computed them without denormals
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def result_of(
    name: str, study: Study, scope: Mapping[str, Any], command: str, trained: Sequence[Mapping[str, Any]]
) -> Result:
    """The content of the study's JSON file. `trained`: runs as `train_in_turns` returns them."""
    cached = any(run["options"]["teacher_cache"] for run in trained)
    timing = (
        f"{WITH_TEACHER_CACHE if cached else TIMING} Test images are classified {study.test_batch:,} at a time. "
        "Denormal numbers are flushed to zero."
    )
    device = trained[0]["options"]["device"] if trained else "cpu"
    return result(name, study.question, command, scope, timing, device, trained)


def train_in_turns(
    study: str,
    runs: Sequence[Run],
    dataset: Dataset,
    test_batch: int,
    folder: Path,
    on_epoch: OnEpoch,
    track: Track | None = None,
) -> list[dict[str, Any]]:
    """Trains all `runs` in `folder` to their last epoch, and returns them in the form of the result's `runs`.

    When a run diverges, the others continue. A later call may have further runs in the same folder. Raises StudyError
    for a folder with another plan or more epochs, TrainingError for a failed training.
    """
    from models.training.recipe import Diverged

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
    """Trains the run's next epoch."""
    from models.training.loop import train

    path, resume = folder / f"{run.label}.safetensors", _state_file(folder, run).is_file()
    epochs = train(run.config, dataset, run.options, path, resume, test_batch=test_batch)
    first = (epoch for epoch in itertools.islice(epochs, 1))  # a generator, as `track` expects
    (epoch,) = track(first, path, resume) if track else first
    return epoch


def _state_file(folder: Path, run: Run) -> Path:
    return folder / f"{run.label}.resume.pt"


def _finished(folder: Path, run: Run) -> int:
    """How many epochs the run has. Raises StudyError if it has more than its options say."""
    count = len(_read(folder, run)["series"]) if _state_file(folder, run).is_file() else 0
    if count > run.options.epochs:
        path = folder / f"{run.label}.json"
        raise StudyError(f"{path}: expected at most {run.options.epochs} epochs, found {count}; name another --output")
    return count


def _read(folder: Path, run: Run) -> dict[str, Any]:
    """The run in the form of the result's `runs`.

    A diverged run has fewer epochs, perhaps none. With held-out images the series has their accuracies, and
    `test_accuracy` is a field of its own.
    """
    path, metrics, series = folder / f"{run.label}.json", {}, []
    if path.exists() or _state_file(folder, run).exists():
        try:
            metrics = json.loads(path.read_bytes())
            series = [{name: round(epoch[name], 8) for name in FIGURES} for epoch in metrics["series"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StudyError(f"{path}: expected the series of a training, found {reason(error)}") from error
    return {
        "label": run.label,
        "at": dict(run.at),
        "config": asdict(run.config),
        "options": asdict(run.options),
        **({"test_accuracy": metrics.get("test_accuracy")} if run.options.hold_out else {}),
        "series": series,
    }


def _plan(study: str, runs: Sequence[Run], dataset: Dataset, test_batch: int) -> dict[str, Any]:
    """What must be equal for a study to continue: its dataset, and each run's config and options."""
    from models.training.recipe import depends_on_epochs

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
    json_ready: dict[str, Any] = json.loads(json.dumps(plan))  # tuples become lists, as in the file
    return json_ready


def _check_plan(path: Path, plan: dict[str, Any]) -> None:
    """Writes the plan to `path`. Further runs may join the plan that is there.

    Raises StudyError for another plan, and for fewer runs: their result would replace that of the larger study.
    """
    if path.exists():
        try:
            earlier = dict(json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError) as error:
            raise StudyError(f"{path}: expected the plan of a study, found {reason(error)}") from error
        joining = {name for name, value in plan.items() if isinstance(value, dict) and name not in earlier}
        expected = dict(_leaves({name: value for name, value in plan.items() if name not in joining}))
        found = dict(_leaves(earlier))
        for name in [*expected, *found]:
            if (value := expected.get(name, "none")) != (found_value := found.get(name, "none")):
                raise StudyError(f"{path}: expected {name} {value}, found {found_value}; name another --output")
    write_atomically(path, json.dumps(plan, indent=2).encode())


def _leaves(plan: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The names and values of all fields; the name of a nested field has those above it before it."""
    for name, value in plan.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", value
