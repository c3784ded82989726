"""Compares `vitbn train --dataset FOLDER`, without other options, with two methods of scikit-learn on the same pixels.

In: datasets and numbers of pictures. For each number a folder gets random training pictures of the dataset, equally
many of each class. The folder's training part trains all three methods, and the dataset's test images judge them. Out:
a table of accuracies, the smallest lead first. `--keep FILE` holds a line of JSON for each folder: an interrupted run
continues, and further runs add their rows.

python benchmarks/studies/own_pictures.py --pictures 60 --pictures 300 --seeds 3
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from tabulate import tabulate

import vitbn_packages  # noqa: F401  # reports another `models` that hides ours
from benchmarks.studies.synthetic_datasets import DRAWN
from common.given_path import GivenPath

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

    from models.data import Dataset

DATASETS = ("fashion-mnist", "mnist", "digits", *DRAWN)
# Names of the measured accuracies.
OURS, OTHERS = "vitbn train %", ("logistic regression %", "support vectors %")


@click.command()
@click.option("--dataset", "datasets", type=click.Choice(DATASETS), multiple=True, default=DATASETS, show_default=True)
@click.option("--pictures", type=click.IntRange(4), multiple=True, default=(60, 300, 1000, 10_000), show_default=True)
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Drawings of pictures.")
@click.option("--keep", type=GivenPath(dir_okay=False, path_type=Path), help="Holds what was measured.")
def own_pictures(datasets: tuple[str, ...], pictures: tuple[int, ...], seeds: int, keep: Path | None) -> None:
    """Compare a folder's training without options with logistic regression and support vectors."""
    rows = [json.loads(line) for line in keep.read_text().splitlines()] if keep and keep.exists() else []
    for name in datasets:
        data = _load(name)
        too_many = [count for count in pictures if count > len(data.train_labels)]
        if too_many:
            click.echo(f"{name} has {len(data.train_labels)} training pictures: none of {too_many}", err=True)
        for count, seed in product(sorted({*pictures} - {*too_many}), range(seeds)):
            if any((row["dataset"], row["pictures"], row["seed"]) == (name, count, seed) for row in rows):
                continue
            rows.append({"dataset": name, "pictures": count, "seed": seed} | _row(data, count, seed))
            if keep:
                with keep.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    shown = [row for row in rows if row["dataset"] in datasets and row["pictures"] in pictures and row["seed"] < seeds]
    click.echo(tabulate(_table(shown), headers="keys", tablefmt="pipe", floatfmt=".1f"))


def _load(name: str) -> Dataset:
    from models.data import load_dataset

    return DRAWN[name]() if name in DRAWN else load_dataset(name)


def _row(data: Dataset, count: int, seed: int) -> dict[str, Any]:
    """What is measured with a folder of `count` pictures that the seed draws."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, checkpoint = Path(temporary) / "pictures", Path(temporary) / "mine.safetensors"
        _write(data, count, seed, folder)
        return _accuracies(data, folder, checkpoint)


def _write(data: Dataset, count: int, seed: int, folder: Path) -> None:
    """Writes `count` random training pictures to `folder`, equally many of each class."""
    order, classes = np.random.default_rng(seed).permutation(len(data.train_labels)), len(data.labels)
    for label in range(classes):
        class_folder = folder / f"{label:02d}"
        class_folder.mkdir(parents=True)
        for number in order[data.train_labels[order] == label][: count // classes]:
            _picture(data.train_images[number]).save(class_folder / f"{number}.png")


def _picture(image: NDArray[np.uint8]) -> Image.Image:
    """`image`: (C, H, W)."""
    from PIL import Image

    return Image.fromarray(image.transpose(1, 2, 0).squeeze())


def _test_images(data: Dataset, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """The test images scaled and cropped as a folder's pictures are when they are read, (n, *shape)."""
    from common.pictures import photo_pixels

    return np.stack([photo_pixels(_picture(image), shape) for image in data.test_images])


def _accuracies(data: Dataset, folder: Path, checkpoint: Path) -> dict[str, Any]:
    """Test accuracies in % of the three methods, and the kind and training time of our network.

    `folder`: the training pictures, a folder a class. `checkpoint`: the file that our training writes.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import SVC

    from models.checkpoints.checkpoint import load
    from models.data.folder import load_folder
    from models.evaluation.accuracy_and_calibration import measure_accuracy, on_device
    from models.train import train

    started_s = time.perf_counter()
    train.main(["--dataset", str(folder), "--device", "cpu", "--output", str(checkpoint)], standalone_mode=False)
    training_s = time.perf_counter() - started_s
    pictures, trained = load_folder(folder), load(checkpoint)
    train_labels = np.array([int(name) for name in pictures.labels])[pictures.train_labels]
    test_images = _test_images(data, trained.config.input_shape)
    train_pixels, test_pixels = (
        images.reshape(len(images), -1) / 255 for images in (pictures.train_images, test_images)
    )
    methods = zip(OTHERS, (LogisticRegression(max_iter=1000), SVC()), strict=True)
    return {
        "network": trained.config.model,
        "training s": training_s,
        OURS: 100 * measure_accuracy(trained.model, *on_device(test_images, data.test_labels, "cpu")),
        **{
            name: 100 * method.fit(train_pixels, train_labels).score(test_pixels, data.test_labels)
            for name, method in methods
        },
    }


def _table(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each dataset and number of pictures: means of the drawings, and the range of our lead."""
    from benchmarks.reporting.tables.table import group_rows

    table = []
    for (dataset, pictures), drawings in group_rows(rows, "dataset", "pictures").items():
        leads = [row[OURS] - max(row[name] for name in OTHERS) for row in drawings]
        table.append(
            {
                "dataset": dataset,
                "pictures": pictures,
                "network": ", ".join(sorted({row["network"] for row in drawings})),
                **{name: mean(row[name] for row in drawings) for name in (OURS, *OTHERS)},
                "lead, points": f"{mean(leads):+.1f} ({min(leads):.1f} to {max(leads):.1f})",
                "drawings": len(drawings),
            }
        )
    return sorted(table, key=lambda row: float(row["lead, points"].split()[0]))


if __name__ == "__main__":
    own_pictures()
