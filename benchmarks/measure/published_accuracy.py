"""The accuracy and calibration of a published model on labelled pictures, which are prepared as clients do.

In: a model's folder in a repository, and a dataset's name or a folder of pictures by class. Out: a row with accuracy,
temperature and calibration error. The temperature is fitted on a half of the pictures and judged by the other half.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clients.bulk.network import Network
    from models.data.list_class_pictures import PictureFile

BATCH = 64

Part = Literal["test", "all"]
Labelled = tuple[NDArray[np.uint8], int]
"""An image (C, H, W) as the model reads it, and its class in the model."""


def published_row(folder: Path, dataset: str, data_dir: Path | None) -> dict[str, Any]:
    """The model's row. `part`: test, or all for a folder that is not split. Raises ClientError, and DataError for a
    missing dataset or for classes that the model does not know.
    """
    from clients.bulk.network import Network, find_model

    network = Network(find_model(folder))
    part, pictures = _pictures(network, dataset, data_dir)
    logits, labels = _answers(network, pictures)
    row = {
        "dataset": dataset,
        "part": part,
        "images": len(labels),
        "model": network.model.name,
        "runtime": "as published",
        "accuracy": float((logits.argmax(1) == labels).mean()),
    }
    return row | calibration(logits, labels)


def _answers(network: Network, pictures: Iterator[Labelled]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Logits (n, classes) and labels (n,)."""
    logits, labels = list[NDArray[np.float32]](), list[int]()
    while batch := [*islice(pictures, BATCH)]:
        logits.append(network.logits(np.stack([image for image, _ in batch])))
        labels += [label for _, label in batch]
    return np.concatenate(logits), np.array(labels, np.int64)


def _pictures(network: Network, dataset: str, data_dir: Path | None) -> tuple[Part, Iterator[Labelled]]:
    from models.data import DATASETS, DataError
    from models.data.list_class_pictures import find_files

    if dataset in DATASETS:
        return "test", _of_dataset(network, dataset, data_dir)
    folder = Path(dataset)
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a dataset's name or a folder of pictures by class, found no such folder")
    files = find_files(folder)
    classes = _class_numbers(network, dataset, files.classes)
    return "test" if files.test else "all", _of_files(network, files.test or files.train, classes)


def _of_dataset(network: Network, dataset: str, data_dir: Path | None) -> Iterator[Labelled]:
    from PIL import Image

    from models.data import load_dataset

    data = load_dataset(dataset, data_dir)
    classes = _class_numbers(network, dataset, data.labels)
    for image, label in zip(data.test_images, data.test_labels, strict=True):
        if len(image) == 1:
            yield network.description.prepare_array(image[0]).image, classes[label]
        else:
            picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))  # (H, W, 3)
            yield network.description.prepare(picture).image, classes[label]


def _of_files(network: Network, files: Sequence[PictureFile], classes: Sequence[int]) -> Iterator[Labelled]:
    """`classes`: number of a class in the dataset -> its number in the model."""
    from clients.errors import InvalidImage
    from clients.images.decode import read_image
    from models.data import DataError

    for file in files:
        try:
            picture = read_image(file.path, full_size=network.description.reads_full_size)
            yield network.description.prepare(picture).image, classes[file.label]
        except InvalidImage as error:
            raise DataError(f"{file.path}: {str(error).removeprefix(f'{file.path}: ')}") from error


def _class_numbers(network: Network, dataset: str, classes: Sequence[str]) -> list[int]:
    """The model's number of each class of the dataset. Raises DataError for a class that the model does not know."""
    from models.data import DataError

    if unknown := sorted({*classes} - {*network.description.labels}):
        known = ", ".join(network.description.labels[:3]) + (" …" if len(network.description.labels) > 3 else "")
        raise DataError(f"{dataset}: expected classes of {network.model.name} ({known}), found {unknown[0]!r}")
    return [network.description.labels.index(name) for name in classes]


def calibration(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> dict[str, float]:
    """The temperature that fits all pictures, and calibration errors. Empty for too few pictures.

    The errors are those of a half of the pictures: before, and with the temperature that fits the other half.
    """
    import torch

    from models.evaluation.accuracy_and_calibration import FEWEST, calibration_error, fit_temperature

    if len(labels) < FEWEST:
        return {}
    scores, classes = torch.from_numpy(logits), torch.from_numpy(labels)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(labels)))
    fitted, judged = order[: len(order) // 2], order[len(order) // 2 :]
    temperature = fit_temperature(scores[fitted], classes[fitted])
    return {
        "temperature": round(fit_temperature(scores, classes), 4),
        "calibration_error_before": calibration_error(scores[judged], classes[judged]),
        "calibration_error": calibration_error(scores[judged], classes[judged], temperature),
    }
