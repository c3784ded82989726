"""Compares what `vitbn train --dataset FOLDER` reaches without an option with scikit-learn on the same pixels.

In: a named dataset and numbers of pictures. A folder of that size gets training pictures of the dataset, as many in
each class. Out: a table. The folder's training part trains all three methods; the dataset's test images judge them.

python benchmarks/studies/own_pictures.py --pictures 60 --pictures 300 --seeds 3
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from tabulate import tabulate

import vitbn_packages  # noqa: F401  # reports another `models` that hides ours
from models.data import DATASETS, load_dataset

if TYPE_CHECKING:
    from models.data import Dataset


@click.command()
@click.option("--dataset", type=click.Choice(DATASETS), default="fashion-mnist", show_default=True)
@click.option("--pictures", type=click.IntRange(4), multiple=True, default=(60, 300, 1000), show_default=True)
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Drawings of pictures.")
def own_pictures(dataset: str, pictures: tuple[int, ...], seeds: int) -> None:
    """Compare a folder's training without options with logistic regression and support vectors."""
    data = load_dataset(dataset)
    rows = [_row(data, count, seed) for count in pictures for seed in range(seeds)]
    click.echo(tabulate(rows, headers="keys", tablefmt="pipe", floatfmt=".1f"))


def _row(data: Dataset, count: int, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        folder, path = Path(place) / "pictures", Path(place) / "mine.safetensors"
        _write(data, count, seed, folder)
        return {"pictures": count, "seed": seed} | _accuracies(data, folder, path)


def _write(data: Dataset, count: int, seed: int, folder: Path) -> None:
    """Writes `count` random training pictures to `folder`, as many for each class."""
    from PIL import Image

    order, classes = np.random.default_rng(seed).permutation(len(data.train_labels)), len(data.labels)
    for label in range(classes):
        place = folder / f"{label:02d}"
        place.mkdir(parents=True)
        for number in order[data.train_labels[order] == label][: count // classes]:
            pixels = data.train_images[number].transpose(1, 2, 0)  # (H, W, C)
            Image.fromarray(pixels.squeeze()).save(place / f"{number}.png")


def _accuracies(data: Dataset, folder: Path, path: Path) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import SVC

    from models.checkpoints.checkpoint import load
    from models.data.folder import load_folder
    from models.evaluation.evaluation import measure_accuracy, on_device
    from models.train import train

    height, width = data.train_images.shape[2:]
    size = ("--image-size", str(height), str(width))
    train.main(["--dataset", str(folder), *size, "--device", "cpu", "--output", str(path)], standalone_mode=False)
    own, trained = load_folder(folder, (height, width)), load(path)
    labels = np.array([int(name) for name in own.labels])[own.train_labels]
    seen, asked = (images.reshape(len(images), -1) / 255 for images in (own.train_images, data.test_images))
    others = {"logistic regression": LogisticRegression(max_iter=1000), "support vectors": SVC()}
    return {
        "network": trained.config.model,
        "vitbn train %": 100 * measure_accuracy(trained.model, *on_device(data.test_images, data.test_labels, "cpu")),
        **{f"{name} %": 100 * other.fit(seen, labels).score(asked, data.test_labels) for name, other in others.items()},
    }


if __name__ == "__main__":
    own_pictures()
