"""Command line: accuracy against measured speed, the plot to choose a network by.

Every checkpoint is rewritten, exported and proved; its ONNX graph then classifies the same images in the way that suits
it best, and all of them take turns in one run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.ways import SEARCH_IMAGES, best_way, cores, runner
from models.catalog import PRETRAINED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from models.checkpoint import Checkpoint

NAME = "frontier-measured"


class FrontierError(Exception):
    """Checkpoints that cannot be compared; the message says what was expected and what was found."""


@click.command()
@click.option(
    "--checkpoints",
    "folders",
    type=click.Path(path_type=Path),
    multiple=True,
    default=[PRETRAINED],
    help="Folder; may be repeated.  [default: the shipped ones]",
)
@click.option("--images", "count", type=click.IntRange(SEARCH_IMAGES), default=5000, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(1), default=60, show_default=True, help="To measure; 3 rounds at least."
)
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Folder for the JSON, table and plot.")
def frontier(folders: Sequence[Path], count: int, seconds: float, output: Path) -> None:
    """Plot the test accuracy of checkpoints against the images a second that they classify, with all rewrites."""
    from export.equivalence import EquivalenceError
    from export.rewrites.errors import RewriteError
    from models.checkpoint import CheckpointError
    from models.studies import results

    try:
        rows = measure(comparable(folders), count, seconds)
        paths = results.write(output, result(rows, count, seconds), plots)
    except (CheckpointError, FrontierError, EquivalenceError, RewriteError, OSError) as error:
        raise click.ClickException(str(error)) from error
    for row in rows:
        click.echo(f"{row['checkpoint']:24} {100 * row['test_accuracy']:6.2f} % {row['images_per_s']:12,.0f} images/s")
    click.echo(f"Wrote {', '.join(path.name for path in paths)} in {output}")


def comparable(folders: Sequence[Path]) -> list[Checkpoint]:
    """The checkpoints in `folders`, of each architecture the first.

    Raises FrontierError where there is none, one without a test accuracy, or one measured on other images.
    """
    from models.checkpoint import load

    paths = [path for folder in folders for path in sorted(folder.glob("*.safetensors"))]
    if not paths:
        raise FrontierError(f"{', '.join(map(str, folders))}: expected checkpoints, found none")
    by_config: dict[object, Checkpoint] = {}
    measured_on = None
    for loaded in map(load, paths):
        if "test_accuracy" not in loaded.metrics:
            raise FrontierError(f"{loaded.path}: expected a finished training with its test accuracy, found none")
        images = (loaded.metrics.get("dataset"), loaded.metrics.get("test_images"))
        if images != (measured_on := measured_on or images):
            raise FrontierError(f"{loaded.path}: expected an accuracy on {_said(measured_on)}, found {_said(images)}")
        by_config.setdefault(loaded.config, loaded)
    return list(by_config.values())


def _said(images: tuple[Any, Any]) -> str:
    dataset, count = images
    return f"{count} test images of {dataset}"


def measure(checkpoints: Sequence[Checkpoint], count: int, seconds: float) -> list[dict[str, Any]]:
    """A row a checkpoint, slowest first: its accuracy, its work, its best way and its samples in that."""
    from tqdm import tqdm

    from benchmarks.contestants import example_images
    from benchmarks.timing import time_interleaved
    from export.graph import export
    from export.rewrites import pipeline

    rows: list[dict[str, Any]] = []
    runs: dict[str, Callable[[], object]] = {}
    for loaded in tqdm(checkpoints, desc="searching the best way", leave=False, disable=None):
        exported = export(loaded, pipeline.ALL)
        images = example_images(loaded.config, count)
        way, name = best_way(exported.onnx, images), f"{loaded.path.parent.name}/{loaded.path.name}"
        runs[name] = runner(exported.onnx, way, images)
        rows.append(
            {
                "checkpoint": name,
                "sha256": loaded.sha256,
                "model": loaded.config.model,
                "depth": loaded.config.depth if loaded.config.is_transformer else None,
                "test_accuracy": loaded.metrics["test_accuracy"],
                "macs": exported.steps[-1].macs,
                "max_abs_error": exported.manifest["max_abs_error"],
                "way": str(way),
            }
        )
    with tqdm(total=100, unit="%", desc="measuring", leave=False, disable=None) as bar:
        measured = time_interleaved(runs, seconds, lambda share: bar.update(int(100 * share) - bar.n))
    for row in rows:
        durations = measured[row["checkpoint"]]
        row |= {f"p{percent}_ms": durations.percentile_ms(percent) for percent in (50, 90, 99)}
        row["images_per_s"] = 1000 * count / row["p50_ms"]
        row["samples_ns"] = durations.samples_ns
    return sorted(rows, key=lambda row: float(row["images_per_s"]))


def result(rows: Sequence[dict[str, Any]], count: int, seconds: float) -> dict[str, Any]:
    """The content of the JSON file."""
    from models.environment import describe
    from models.studies.results import Column, table

    columns = [
        Column("checkpoint"),
        Column("model"),
        Column("depth", 0),
        Column("test accuracy %", 2),
        Column("M MACs an image", 2),
        Column("images/s", 0),
        Column("best way"),
    ]
    cells = [
        [
            *(row[name] for name in ("checkpoint", "model", "depth")),
            *(100 * row["test_accuracy"], row["macs"] / 1e6, row["images_per_s"], row["way"]),
        ]
        for row in rows
    ]
    title = "Networks after all rewrites that apply, in ONNX Runtime, float32, each in its best way"
    rounds = len(rows[0]["samples_ns"])
    return {
        "study": NAME,
        "question": "Which network for which speed?",
        "command": f"python benchmarks/frontier.py --images {count} --seconds {seconds:g} --output DIR",
        "scope": {"images": count, "reduced": ""},
        "timing": f"Medians of {rounds} interleaved rounds, {count:,} images each, ONNX Runtime, all rewrites.",
        "environment": describe(cores(), "cpu"),
        "derived": list(rows),
        "tables": [table(title, columns, cells)],
        "notes": [],
    }


def plots(result: dict[str, Any]) -> Mapping[str, Figure]:
    """Accuracy over speed: better is up and to the right."""
    from models.studies.figures import frontier as points
    from models.studies.results import footnote

    measured = [
        (row["model"], row["depth"], row["images_per_s"], 100 * row["test_accuracy"]) for row in result["derived"]
    ]
    title = "What accuracy costs in speed"
    return {"accuracy-speed": points(title, footnote(result), measured, "images a second, rewritten, on this machine")}


if __name__ == "__main__":
    frontier()
