"""A study from its grid to its files.

In: a `Study` and a `Scope`. Out: NAME.json with every run's config, options and series, and a page and pictures of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.catalog import SHIPPED, relative, shipped
from models.config import ConfigError
from models.plots.results import TIMING, WITH_TEACHER_CACHE, Result, now
from models.studies.grids import Extent, Fields, Study
from models.studies.running import OnEpoch, Run, StudyError, Track, Trained, advance

if TYPE_CHECKING:
    from models.data import Dataset


@dataclass(frozen=True)
class Scope:
    """`dataset` has only the images in use; `reduced` is empty for a whole study; `options` are fields of all runs."""

    dataset: Dataset
    epochs: int
    device: str
    seeds: int
    reduced: str
    options: Fields


def scope_of(
    study: Study,
    dataset: Dataset,
    device: str,
    quick: bool = False,
    epochs: int | None = None,
    train_images: int | None = None,
    seeds: int = 1,
    **options: Any,
) -> Scope:
    whole = Extent(study.epochs, len(dataset.train_labels), len(dataset.test_labels))
    if (train_images or 0) > whole.train_images:
        raise StudyError(f"{dataset.name}: expected at most {whole.train_images} images, found {train_images}")
    extent = study.quick if quick else whole
    extent = Extent(
        epochs or extent.epochs,
        min(train_images or extent.train_images, whole.train_images),
        min(extent.test_images, whole.test_images),
    )
    return Scope(cut(dataset, extent), extent.epochs, device, seeds, in_words(extent, whole), options)


def cut(dataset: Dataset, extent: Extent) -> Dataset:
    train, test = extent.train_images, extent.test_images
    return replace(
        dataset,
        train_images=dataset.train_images[:train],
        train_labels=dataset.train_labels[:train],
        test_images=dataset.test_images[:test],
        test_labels=dataset.test_labels[:test],
    )


def in_words(extent: Extent, whole: Extent) -> str:
    counts = (
        (extent.epochs, whole.epochs, "epochs"),
        (extent.train_images, whole.train_images, "training images"),
        (extent.test_images, whole.test_images, "test images"),
    )
    return ", ".join(f"{some:,} of {all_:,} {what}" for some, all_, what in counts if some < all_)


def runs(study: Study, scope: Scope, chosen: Mapping[str, Sequence[str]] | None = None) -> list[Run]:
    """Compared runs stand beside each other. `chosen`: choices by axis; all without."""
    names = [
        [name for name in axis if not (chosen or {}).get(option) or name in (chosen or {})[option]]
        for option, axis in study.axes.items()
    ]
    return [
        run_at(study, scope, dict(zip(study.axes, at, strict=True)), seed)
        for seed in range(scope.seeds)
        for at in itertools.product(*names)
    ]


def run_at(study: Study, scope: Scope, at: Mapping[str, str], seed: int) -> Run:
    from models.train import configure

    own: dict[str, Any] = {"model": "vitbn", "batch_size": 100, **scope.options, **study.fixed}
    for option, name in at.items():
        own |= study.axes[option][name]
    if "hold_out" in own:
        own["hold_out"] = min(own["hold_out"], len(scope.dataset.train_labels) // 12)
    if own.get("teacher") in SHIPPED:
        own["teacher"] = str(relative(shipped(own["teacher"])))
    of_the_scope = {"epochs": scope.epochs, "seed": seed, "device": scope.device}
    try:
        if taken := own.keys() & of_the_scope.keys():
            raise TypeError(f"{min(taken)}, which the study sets")
        config, options = configure(scope.dataset, own | of_the_scope)
    except (TypeError, ConfigError) as error:
        raise StudyError(f"expected options of models/train.py, found {error}") from error
    parts = [name if name[0].isalpha() else f"{option}-{name}" for option, name in reversed([*at.items()])]
    return Run("-".join([*parts, *([f"seed-{seed}"] if seed else [])]), config, options, at)


def carry_out(
    name: str,
    study: Study,
    every: Sequence[Run],
    scope: Scope,
    command: str,
    output: Path,
    on_epoch: OnEpoch,
    track: Track | None = None,
) -> tuple[Result, list[Trained]]:
    import numpy as np
    import torch

    for kind in (np.float32, np.float64):
        np.finfo(kind)  # kept by NumPy, which warns if it works them out without denormals
    torch.set_flush_denormal(True)  # denormals in a dead network would cost ten times the time
    try:
        trained = advance(name, every, scope.dataset, study.test_batch, output / "runs", on_epoch, track)
    finally:
        torch.set_flush_denormal(False)
    return assemble(name, study, scope, command, trained), trained


def assemble(name: str, study: Study, scope: Scope, command: str, trained: Sequence[Trained]) -> Result:
    import torch

    from models.environment import describe

    cached = any(training.run.options.teacher_cache for training in trained)
    clock = WITH_TEACHER_CACHE if cached else TIMING
    return {
        "study": name,
        "question": study.question,
        "command": command,
        "date": now(),
        "scope": {
            "dataset": scope.dataset.name,
            "train_images": len(scope.dataset.train_labels),
            "test_images": len(scope.dataset.test_labels),
            "test_batch": study.test_batch,
            "epochs": scope.epochs,
            "seeds": scope.seeds,
            "reduced": scope.reduced,
        },
        "timing": f"{clock} Test images are classified {study.test_batch:,} at a time. "
        "Denormal numbers are flushed to zero.",
        "environment": describe(torch.get_num_threads(), scope.device),
        "runs": [training.as_json() for training in trained],
    }
