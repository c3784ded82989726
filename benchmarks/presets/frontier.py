"""In: folders of checkpoints. Out: their test accuracy and images a second, with all rewrites."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.measure.options import seconds_option
from benchmarks.measure.result_file import Record
from benchmarks.reporting.recorded_decorator import recorded
from common.given_path import GivenPath
from models.catalog import PRETRAINED

if TYPE_CHECKING:
    from models.checkpoints.checkpoint import Checkpoint


@click.command()
@click.option(
    "--checkpoints",
    "folders",
    type=GivenPath(path_type=Path),
    multiple=True,
    default=[PRETRAINED],
    help="Folder; repeatable.  [default: the shipped checkpoints]",
)
@click.option("--dataset", help="Only checkpoints of this dataset.  [default: of the shipped mnist's, else all]")
@seconds_option(60, "At most, to measure; three rounds in any case.")
@recorded("frontier")
def frontier(record: Record, folders: Sequence[Path], dataset: str | None, seconds: float) -> None:
    """Compare test accuracy and images a second of checkpoints with all rewrites."""
    from benchmarks.measure.checkpoint_speeds import measure

    measure(comparable(folders, dataset), seconds, record.update)


def comparable(folders: Sequence[Path], dataset: str | None = None) -> list[Checkpoint]:
    """The first checkpoint of each architecture in `folders`.

    `dataset`: only checkpoints of that dataset; by default MNIST for the shipped checkpoints, else all. Raises
    ClickException for no checkpoints, a missing test accuracy, accuracies on different images, or equal names.
    """
    from benchmarks.measure.checkpoint_speeds import checkpoint_name
    from models.checkpoints.checkpoint import load

    paths = [path for folder in folders for path in sorted(folder.glob("*.safetensors"))]
    if not paths:
        raise click.ClickException(f"{', '.join(map(str, folders))}: expected checkpoints, found none")
    dataset = dataset or ("mnist" if list(folders) == [PRETRAINED] else None)
    by_config: dict[object, Checkpoint] = {}
    first_test_images = None
    for checkpoint in map(load, paths):
        path, metrics = checkpoint.path, checkpoint.metrics
        if dataset and metrics.get("dataset") != dataset:
            continue
        if "test_accuracy" not in metrics:
            raise click.ClickException(f"{path}: expected a finished training with its test accuracy, found none")
        test_images = f"{metrics.get('test_images')} test images of {metrics.get('dataset')}"
        first_test_images = first_test_images or test_images
        if test_images != first_test_images:
            raise click.ClickException(f"{path}: expected an accuracy on {first_test_images}, found {test_images}")
        by_config.setdefault(checkpoint.config, checkpoint)
    if not by_config:
        raise click.ClickException(f"{', '.join(map(str, folders))}: expected checkpoints of {dataset}, found none")
    by_name: dict[str, Path] = {}
    for path in (checkpoint.path for checkpoint in by_config.values()):
        if (other := by_name.setdefault(checkpoint_name(path), path)) is not path:
            raise click.ClickException(
                f"{path}: expected another folder or file name than {other}, found {checkpoint_name(path)}"
            )
    return list(by_config.values())
