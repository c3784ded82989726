"""Command line: checkpoints get a temperature and the threshold below which a picture is none of their classes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

import vitbn_packages  # first: reports another `models` that hides ours
from common.given_path import GivenPath
from models.data import DATA_DIR_HELP, DATASETS, load_again

if TYPE_CHECKING:
    from models.checkpoints.checkpoint import Checkpoint
    from models.checkpoints.metrics import Metrics

HEAD = f"{'checkpoint':24}  temperature  calibration error % before   after  rejected % held-out  drawings of others"


@click.command()
@click.argument("checkpoints", type=GivenPath(path_type=Path), nargs=-1, required=True)
@click.option("--data-dir", type=GivenPath(path_type=Path), help=DATA_DIR_HELP)
@vitbn_packages.one_line_errors()
def calibrate(checkpoints: tuple[Path, ...], data_dir: Path | None) -> None:
    """Fit the temperature of CHECKPOINTS, and when they reject, on the images that their training held out."""
    from models.checkpoints.checkpoint import add_metrics, load

    for path in checkpoints:
        measured = measure(load(path), data_dir)
        add_metrics(path, measured)
        if path is checkpoints[0]:
            click.echo(HEAD)
        before, after = 100 * measured["calibration_error_before"], 100 * measured["calibration_error"]
        lost, rejected = 100 * measured["rejected_held_out"], 100 * measured["rejected_drawings"]
        click.echo(
            f"{path.name:24}  {measured['temperature']:11.4f}  {before:26.2f}  {after:6.2f}  {lost:19.1f}"
            f"  {rejected:18.1f}"
        )


def measure(checkpoint: Checkpoint, data_dir: Path | None) -> dict[str, float]:
    """The metrics that `calibrate` adds. Raises CheckpointError if the training held out too few, and DataError."""
    from models.checkpoints.checkpoint import CheckpointError
    from models.evaluation.accuracy_and_calibration import FEWEST, measure_calibration, too_few

    path, metrics, shape = checkpoint.path, checkpoint.metrics, checkpoint.config.input_shape
    count, name = metrics.get("options", {}).get("hold_out", 0), metrics.get("dataset")
    if "adapted" in metrics:
        why = "found one of vitbn adapt, of whose new source no labelled pictures are known"
        raise CheckpointError(f"{path}: expected a checkpoint of vitbn train, {why}")
    if not count:
        raise CheckpointError(f"{path}: expected a training with --hold-out, found none{_again(metrics)}")
    if type(count) is not int or (name not in DATASETS and "pictures" not in metrics):
        raise CheckpointError(f"{path}: expected --hold-out N of a --dataset in the metrics, found {count!r}, {name!r}")
    data = load_again(metrics, data_dir, image_size=shape[1:])
    if (found := data.train_images.shape[1:]) != shape:
        raise CheckpointError(f"{path}: expected images of the shape {shape}, found {found} in {name}")
    if count < FEWEST:
        raise CheckpointError(f"{path}: {too_few(count)}")
    return measure_calibration(checkpoint.model, data, count)


def _again(metrics: Metrics) -> str:
    """Advice to train again with held-out images, as a command; empty if the training's command is unknown."""
    command, images = metrics.get("command"), metrics.get("test_images")
    if metrics.get("dataset") not in DATASETS or not command or not images:
        return ""
    return f"; keep a part of the training images for it: {command} --hold-out {max(1, images // 2)}"


if __name__ == "__main__":
    calibrate()
