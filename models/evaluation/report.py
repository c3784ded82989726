"""What a finished training reached on its test part: the figures and pictures of its report.

In: the checkpoint as the training wrote it, with its series beside it, and the dataset. Out: `Result`, which
models/evaluation/report_page.py draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from models.checkpoints import metrics as metrics_json

if TYPE_CHECKING:
    from models.data import Dataset

MISTAKEN = 20
NORMAL = 1.959964  # standard deviations of a 95 % interval


@dataclass(frozen=True)
class Mistake:
    """`pixels`: uint8 (C, H, W) as the network saw them; `label`, `answer`: names of classes.

    `probability`: of the answer; `of_label`: of the label; `file`: "" for a dataset that is no folder of pictures.
    """

    pixels: NDArray[np.uint8]
    label: str
    answer: str
    probability: float
    of_label: float
    file: str


@dataclass(frozen=True)
class Result:
    """`confusion`: int64 (classes, classes), rows are labels, columns answers; `about`: content of the series' file."""

    about: dict[str, Any]
    labels: tuple[str, ...]
    confusion: NDArray[np.int64]
    mistakes: Sequence[Mistake]

    @property
    def pictures(self) -> int:
        return int(self.confusion.sum())

    @property
    def right(self) -> int:
        return int(self.confusion.trace())

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the share of right answers."""
        return wilson(self.right / self.pictures, self.pictures)


def measure(path: Path, dataset: Dataset, device: str) -> Result:
    """Measures the checkpoint at `path` on the dataset's test part. Raises CheckpointError and OSError."""
    from models.checkpoints.checkpoint import load
    from models.evaluation.accuracy_and_calibration import classify, on_device

    about = metrics_json.from_json(path.with_suffix(".json").read_text())
    images, _ = on_device(dataset.test_images, dataset.test_labels, device)
    logits = classify(load(path).model.to(device), images) / about.get("temperature", 1.0)
    probabilities = logits.double().softmax(1).cpu().numpy()  # (n, classes)
    confusion = np.zeros((len(dataset.labels), len(dataset.labels)), np.int64)
    np.add.at(confusion, (dataset.test_labels, probabilities.argmax(1)), 1)
    return Result(about, dataset.labels, confusion, _most_mistaken(dataset, probabilities))


def _most_mistaken(dataset: Dataset, probabilities: NDArray[np.float64]) -> list[Mistake]:
    """The wrong answers whose label has the least probability, at most MISTAKEN."""
    labels, answers = dataset.test_labels, probabilities.argmax(1)
    of_label = probabilities[np.arange(len(labels)), labels]  # (n,)
    wrong = np.flatnonzero(answers != labels)
    return [
        Mistake(
            dataset.test_images[number],
            dataset.labels[labels[number]],
            dataset.labels[answers[number]],
            float(probabilities[number].max()),
            float(of_label[number]),
            dataset.test_files[number] if dataset.test_files else "",
        )
        for number in wrong[np.argsort(of_label[wrong], kind="stable")][:MISTAKEN]
    ]


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share in [0, 1] that was measured on `count` pictures. Wilson, JASA 22, 1927."""
    spread = NORMAL**2 / count
    centre = (share + spread / 2) / (1 + spread)
    reach = NORMAL / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return max(0.0, centre - reach), min(1.0, centre + reach)
