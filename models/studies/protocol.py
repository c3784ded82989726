"""A study and its extent.

In: a `Study` and a `Scope`. Out: its files, through `running` and `results`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from models.plots import results
from models.studies.running import OnEpoch, Run, StudyError, Track, Trained, advance

if TYPE_CHECKING:
    from models.data import Dataset
    from models.training import TrainingOptions


@dataclass(frozen=True)
class Extent:
    epochs: int
    train_images: int
    test_images: int


@dataclass(frozen=True)
class Scope:
    """`dataset` has only the images in use."""

    dataset: Dataset
    epochs: int
    test_batch: int
    device: str
    quick: bool
    all_images: bool  # to train on
    reduced: str
    form: Literal["served", "plain"] = "served"
    seeds: int = 1

    def options(self, lr: float, seed: int = 0, **others: Any) -> TrainingOptions:
        """With the published study's batch size."""
        from models.training import TrainingOptions

        given: dict[str, Any] = {"batch_size": 100, "form": self.form, **others}
        return TrainingOptions(epochs=self.epochs, lr=lr, seed=seed, device=self.device, **given)

    def as_json(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset.name,
            "train_images": len(self.dataset.train_labels),
            "test_images": len(self.dataset.test_labels),
            "test_batch": self.test_batch,
            "epochs": self.epochs,
            "form": self.form,
            "seeds": self.seeds,
            "reduced": self.reduced,
        }


def name_of_part(study: str, chosen: Sequence[float], every: Sequence[float], all_images: bool) -> str:
    if tuple(chosen) == tuple(every):
        return study
    return "-".join([study, *map(str, chosen), *(["all-images"] if all_images else [])])


@dataclass(frozen=True)
class Study:
    """`findings` returns `derived`, `tables` and `notes` of the JSON."""

    name: str
    question: str
    epochs: int
    test_batch: int
    quick: Extent
    runs: Callable[[Scope], list[Run]]
    findings: Callable[[list[Trained], Scope], dict[str, Any]]
    plots: results.Plots

    def scope(
        self,
        dataset: Dataset,
        device: str,
        quick: bool,
        epochs: int | None = None,
        train_images: int | None = None,
        **others: Any,
    ) -> Scope:
        whole = Extent(self.epochs, len(dataset.train_labels), len(dataset.test_labels))
        if (train_images or 0) > whole.train_images:
            raise StudyError(f"{dataset.name}: expected at most {whole.train_images} images, found {train_images}")
        extent = self.quick if quick else whole
        extent = Extent(
            epochs or extent.epochs,
            min(train_images or extent.train_images, whole.train_images),
            min(extent.test_images, whole.test_images),
        )
        return Scope(
            cut(dataset, extent),
            extent.epochs,
            self.test_batch,
            device,
            quick,
            extent.train_images == whole.train_images,
            in_words(extent, whole),
            **others,
        )


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
    """Empty for a whole study."""
    counts = (
        (extent.epochs, whole.epochs, "epochs"),
        (extent.train_images, whole.train_images, "training images"),
        (extent.test_images, whole.test_images, "test images"),
    )
    return ", ".join(f"{some:,} of {all_:,} {what}" for some, all_, what in counts if some < all_)


def carry_out(
    study: Study, scope: Scope, command: str, output: Path, on_epoch: OnEpoch, track: Track | None = None
) -> list[Path]:
    import numpy as np
    import torch

    runs = study.runs(scope)
    for kind in (np.float32, np.float64):
        np.finfo(kind)  # kept by NumPy, which warns if it works them out without denormals
    torch.set_flush_denormal(True)  # denormals in a dead network would cost ten times the time
    try:
        trained = advance(study.name, runs, scope.dataset, study.test_batch, output / "runs", on_epoch, track)
    finally:
        torch.set_flush_denormal(False)
    result = assemble(study.name, study.question, command, scope, study.findings(trained, scope), trained)
    return results.write(output, result, study.plots)


def assemble(
    name: str, question: str, command: str, scope: Scope, findings: dict[str, Any], trained: Sequence[Trained]
) -> results.Result:
    import torch

    from models.environment import describe

    reinforced = any(training.run.options.reinforced for training in trained)
    clock = results.REINFORCED if reinforced else results.TIMING
    return {
        "study": name,
        "question": question,
        "command": command,
        "quick": scope.quick,
        "scope": scope.as_json(),
        "timing": f"{clock} Test images are classified {scope.test_batch:,} at a time. "
        "Denormal numbers are flushed to zero.",
        "environment": describe(torch.get_num_threads(), scope.device),
        "runs": describe_runs(trained),
        **findings,
    }


def describe_runs(trained: Sequence[Trained]) -> list[dict[str, Any]]:
    return [
        {
            "label": training.run.label,
            "config": asdict(training.run.config),
            "options": asdict(training.run.options),
            "series": [asdict(epoch) for epoch in training.series],
        }
        for training in trained
    ]
