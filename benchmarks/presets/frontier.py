"""In: folders of checkpoints. Out: their test accuracy and images a second, with all rewrites."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.measure.options import seconds_option
from benchmarks.measure.run import Record
from benchmarks.reporting.recorded_command import recorded
from models.catalog import PRETRAINED

if TYPE_CHECKING:
    from models.checkpoints.checkpoint import Checkpoint


@click.command()
@click.option(
    "--checkpoints",
    "folders",
    type=click.Path(path_type=Path),
    multiple=True,
    default=[PRETRAINED],
    help="Folder; repeatable.  [default: the shipped checkpoints]",
)
@click.option("--dataset", help="Only checkpoints of this dataset.  [default: of the shipped mnist's, else all]")
@seconds_option(60, "At most, to measure; three rounds in any case.")
@recorded("frontier")
def frontier(record: Record, folders: Sequence[Path], dataset: str | None, seconds: float) -> None:
    """Compare test accuracy and images a second of checkpoints with all rewrites."""
    from benchmarks.measure.speeds import measure

    measure(comparable(folders, dataset), seconds, record.update)


def comparable(folders: Sequence[Path], dataset: str | None = None) -> list[Checkpoint]:
    """The first checkpoint of each architecture, of `dataset` if given; of the shipped checkpoints MNIST's by default.

    Raises ClickException for no checkpoints, a missing test accuracy, accuracies on different images, or equal names.
    """
    from benchmarks.measure.speeds import name_of
    from models.checkpoints.checkpoint import load

    paths = [path for folder in folders for path in sorted(folder.glob("*.safetensors"))]
    if not paths:
        raise click.ClickException(f"{', '.join(map(str, folders))}: expected checkpoints, found none")
    wanted = dataset or ("mnist" if list(folders) == [PRETRAINED] else None)
    by_config: dict[object, Checkpoint] = {}
    measured_on = None
    for loaded in map(load, paths):
        if wanted and loaded.metrics.get("dataset") != wanted:
            continue
        if "test_accuracy" not in loaded.metrics:
            raise click.ClickException(
                f"{loaded.path}: expected a finished training with its test accuracy, found none"
            )
        images = (loaded.metrics.get("dataset"), loaded.metrics.get("test_images"))
        if images != (measured_on := measured_on or images):
            raise click.ClickException(
                f"{loaded.path}: expected an accuracy on {_said(measured_on)}, found {_said(images)}"
            )
        by_config.setdefault(loaded.config, loaded)
    if not by_config:
        raise click.ClickException(f"{', '.join(map(str, folders))}: expected checkpoints of {wanted}, found none")
    by_name: dict[str, Path] = {}
    for path in (loaded.path for loaded in by_config.values()):
        if (other := by_name.setdefault(name_of(path), path)) is not path:
            raise click.ClickException(
                f"{path}: expected another folder or file name than {other}, found {name_of(path)}"
            )
    return list(by_config.values())


def _said(images: tuple[Any, Any]) -> str:
    dataset, count = images
    return f"{count} test images of {dataset}"
