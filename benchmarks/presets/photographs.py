from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from benchmarks.measure.choices import dataset_options, json_option
from benchmarks.measure.machine import cores
from models.data import load_dataset

SOURCES = ("dataset", "strokes", "scikit-learn")


@click.command()
@click.argument("names", nargs=-1, metavar="[CONDITION]...")
@click.option("--images", "count", type=click.IntRange(1), default=200, show_default=True, help="Per source.")
@click.option("--source", "sources", type=click.Choice(SOURCES), multiple=True, help="[default: all]")
@dataset_options
@json_option
def photographs(
    names: tuple[str, ...],
    count: int,
    sources: tuple[str, ...],
    dataset: str,
    data_dir: Path | None,
    json_path: Path | None,
) -> None:
    """Measure the accuracy on each CONDITION (all by default), by source of the ink."""
    from benchmarks.measure.run import recording
    from benchmarks.pictures.conditions import CONDITIONS
    from benchmarks.reporting.tables import show

    if unknown := [name for name in names if name not in CONDITIONS]:
        raise click.UsageError(f"{unknown[0]}: expected one of {', '.join(CONDITIONS)}")
    with recording(json_path, cores()) as record:
        _measure(names or tuple(CONDITIONS), sources or SOURCES, count, dataset, data_dir, record.update)
    click.echo(show(record.run(), "conditions"))


def _measure(
    names: tuple[str, ...], sources: tuple[str, ...], count: int, dataset: str, data_dir: Path | None, update: Any
) -> None:
    from benchmarks.measure.progress import steps
    from benchmarks.pictures import inks
    from benchmarks.pictures.conditions import pictures
    from benchmarks.pictures.judge import Judge, seen

    judge, drawn, rows = Judge(), {}, []
    if "dataset" in sources:
        images, labels = inks.test_images(load_dataset(dataset, data_dir), count)
        drawn[dataset] = inks.enlarged(images), labels
        rows.append(
            {"condition": "raw, as in the file", "images": count, dataset: judge.percent(images[:, None], labels)}
        )
    if "strokes" in sources:
        drawn["strokes"] = inks.strokes(count)
    if "scikit-learn" in sources:
        drawn["scikit-learn"] = inks.scikit_learn(count)
    for name in steps(names, "conditions"):
        percents = {source: judge.percent(seen(pictures(name, ink)), labels) for source, (ink, labels) in drawn.items()}
        rows.append({"condition": name, "images": count, **percents})
        update(rows)
