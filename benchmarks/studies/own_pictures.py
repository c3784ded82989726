"""Compares what `vitbn train --dataset FOLDER` reaches without an option with scikit-learn on the same pixels.

In: datasets and numbers of pictures. A folder of that size gets training pictures of the dataset, as many in each
class. Out: a table, the least lead first. The folder's training part trains all three methods; the dataset's test
images judge them. `--keep FILE` holds a line of JSON for each drawing: an interrupted run goes on, and further runs add
their rows.

python benchmarks/studies/own_pictures.py --pictures 60 --pictures 300 --seeds 3
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from tabulate import tabulate

import vitbn_packages  # noqa: F401  # reports another `models` that hides ours

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL import Image

    from models.data import Dataset

TEXTURES = ("weak-pattern", "smooth-pattern", "noise")
NAMES = ("fashion-mnist", "mnist", "digits", "shapes", *TEXTURES)
OURS, OTHERS = "vitbn train %", ("logistic regression %", "support vectors %")


@click.command()
@click.option("--dataset", "datasets", type=click.Choice(NAMES), multiple=True, default=NAMES, show_default=True)
@click.option("--pictures", type=click.IntRange(4), multiple=True, default=(60, 300, 1000, 10_000), show_default=True)
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Drawings of pictures.")
@click.option("--keep", type=click.Path(dir_okay=False, path_type=Path), help="Holds what was measured.")
def own_pictures(datasets: tuple[str, ...], pictures: tuple[int, ...], seeds: int, keep: Path | None) -> None:
    """Compare a folder's training without options with logistic regression and support vectors."""
    rows = [json.loads(line) for line in keep.read_text().splitlines()] if keep and keep.exists() else []
    for name in datasets:
        data = _load(name)
        more = [count for count in pictures if count > len(data.train_labels)]
        if more:
            click.echo(f"{name} has {len(data.train_labels)} training pictures: none of {more}", err=True)
        for count, seed in product(sorted({*pictures} - {*more}), range(seeds)):
            if any((row["dataset"], row["pictures"], row["seed"]) == (name, count, seed) for row in rows):
                continue
            rows.append({"dataset": name, "pictures": count, "seed": seed} | _row(data, count, seed))
            if keep:
                with keep.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    asked = [row for row in rows if row["dataset"] in datasets and row["pictures"] in pictures and row["seed"] < seeds]
    click.echo(tabulate(_table(asked), headers="keys", tablefmt="pipe", floatfmt=".1f"))


def _load(name: str) -> Dataset:
    from benchmarks.studies.drawn_shapes import shapes
    from benchmarks.studies.drawn_textures import noise, smooth_pattern, weak_pattern
    from models.data import load_dataset

    drawn = {"shapes": shapes} | dict(zip(TEXTURES, (weak_pattern, smooth_pattern, noise), strict=True))
    return drawn[name]() if name in drawn else load_dataset(name)


def _row(data: Dataset, count: int, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        folder, path = Path(place) / "pictures", Path(place) / "mine.safetensors"
        _write(data, count, seed, folder)
        return _accuracies(data, folder, path)


def _write(data: Dataset, count: int, seed: int, folder: Path) -> None:
    """Writes `count` random training pictures to `folder`, as many for each class."""
    order, classes = np.random.default_rng(seed).permutation(len(data.train_labels)), len(data.labels)
    for label in range(classes):
        place = folder / f"{label:02d}"
        place.mkdir(parents=True)
        for number in order[data.train_labels[order] == label][: count // classes]:
            _picture(data.train_images[number]).save(place / f"{number}.png")


def _picture(image: NDArray[np.uint8]) -> Image.Image:
    """Of (C, H, W)."""
    from PIL import Image

    return Image.fromarray(image.transpose(1, 2, 0).squeeze())


def _as_read(data: Dataset, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """The test images as a folder's pictures are read, (n, *shape)."""
    from common.pictures import photo_pixels

    return np.stack([photo_pixels(_picture(image), shape) for image in data.test_images])


def _accuracies(data: Dataset, folder: Path, path: Path) -> dict[str, Any]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import SVC

    from models.checkpoints.checkpoint import load
    from models.data.folder import load_folder
    from models.evaluation.evaluation import measure_accuracy, on_device
    from models.train import train

    began_s = time.perf_counter()
    train.main(["--dataset", str(folder), "--device", "cpu", "--output", str(path)], standalone_mode=False)
    taken_s = time.perf_counter() - began_s
    own, trained = load_folder(folder), load(path)
    labels = np.array([int(name) for name in own.labels])[own.train_labels]
    tests = _as_read(data, trained.config.input_shape)
    seen, asked = (images.reshape(len(images), -1) / 255 for images in (own.train_images, tests))
    others = zip(OTHERS, (LogisticRegression(max_iter=1000), SVC()), strict=True)
    return {
        "network": trained.config.model,
        "training s": taken_s,
        OURS: 100 * measure_accuracy(trained.model, *on_device(tests, data.test_labels, "cpu")),
        **{name: 100 * other.fit(seen, labels).score(asked, data.test_labels) for name, other in others},
    }


def _table(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for the drawings of each dataset and number: means, and of the lead the least and the most."""
    drawings: defaultdict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        drawings[row["dataset"], row["pictures"]].append(row)
    table = []
    for (dataset, pictures), own in drawings.items():
        leads = [row[OURS] - max(row[name] for name in OTHERS) for row in own]
        table.append(
            {
                "dataset": dataset,
                "pictures": pictures,
                "network": ", ".join(sorted({row["network"] for row in own})),
                **{name: mean(row[name] for row in own) for name in (OURS, *OTHERS)},
                "lead, points": f"{mean(leads):+.1f} ({_span(leads)})",
                "drawings": len(own),
            }
        )
    return sorted(table, key=lambda row: float(row["lead, points"].split()[0]))


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}"


if __name__ == "__main__":
    own_pictures()
