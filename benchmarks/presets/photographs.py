from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.measure.choices import dataset_options, json_option
from benchmarks.measure.machine import cores
from models.data import load_dataset

if TYPE_CHECKING:
    from benchmarks.measure.run import Row


@click.command()
@click.option("--images", "count", type=click.IntRange(1), default=200, show_default=True, help="Per source.")
@dataset_options
@json_option
def photographs(count: int, dataset: str, data_dir: Path | None, json_path: Path | None) -> None:
    """Measure the accuracy under each condition, by source of the ink."""
    from benchmarks.measure.run import recording
    from benchmarks.reporting.tables import show

    with recording(json_path, cores()) as record:
        for row in _measured(count, dataset, data_dir):
            record.add(row)
    click.echo(show(record.run(), "photographs"))


def _measured(count: int, dataset: str, data_dir: Path | None) -> Iterator[Row]:
    from benchmarks.measure.progress import steps
    from benchmarks.pictures import inks
    from benchmarks.pictures.conditions import CONDITIONS, pictures
    from benchmarks.pictures.judge import percent, seen

    images, truth = inks.test_images(load_dataset(dataset, data_dir), count)
    sources = {dataset: (inks.enlarged(images), truth)}
    sources |= {"strokes": inks.strokes(count), "scikit-learn": inks.scikit_learn(count)}
    yield {"condition": "raw, as in the file", "images": count, dataset: percent(images[:, None], truth)}
    for name in steps([*CONDITIONS], "conditions"):
        percents = {where: percent(seen(pictures(name, ink)), labels) for where, (ink, labels) in sources.items()}
        yield {"condition": name, "images": count, **percents}
