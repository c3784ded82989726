"""The command `vitbn tune`: dataset -> searched parameters for models/train.py, or a frontier of accuracy and speed.

Trials never use test images. The same command continues a stopped search.
"""

from __future__ import annotations

import json
import shlex
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

import vitbn_packages  # first: reports another package that hides ours
from benchmarks.studies.search import (
    BATCH_SIZES,
    LEARNING_RATES,
    Axis,
    Search,
    Trial,
    Values,
    best,
    check_installed,
    front,
    propose,
    read,
    write,
)
from common.files import write_atomically
from common.given_path import GivenPath
from models.data import DATA_DIR_HELP, DATASETS, DataError, Dataset, hold_out, load_dataset
from models.networks.config import AUGMENTATIONS, Augmentation, ModelName
from models.training.recipe import DEVICES

SEARCHES = Path("searches")
HEAD_FEATURES = 32  # absorbed attention costs the same for any number
# Options of the frontier's search.
GEOMETRY = {
    "patch": Axis((4, 7, 14), listed=True),
    "depth": Axis((1, 8)),
    "dim": Axis((32, 48, 64, 96, 128), listed=True),
    "heads": Axis((1, 2, 4, 8), listed=True),
    "last_heads": Axis((4, 8, 16, 32), listed=True),
    "mlp_dim": Axis((64, 128, 256), listed=True),
}
# Fixed options of the frontier's trainings.
RECIPE: dict[str, Any] = {
    **{"batch_size": 100, "lr": 3e-3, "schedule": "one-cycle", "weight_decay": 0.05, "clip": 1.0},
    "standardise": True,
}


def _images_per_s(checkpoint: Path) -> float:
    """Of the checkpoint's rewritten file. Raises ClickException if it cannot be exported."""
    from benchmarks.measure.checkpoint_speeds import images_per_s
    from export.errors import ExportError

    try:
        return images_per_s(checkpoint)
    except ExportError as error:
        raise click.ClickException(f"{checkpoint}: expected its measured speed, found {error}") from error


@click.command()
@click.option("--model", type=click.Choice(list(LEARNING_RATES)), default="vitbn", show_default=True)
@click.option("--dataset", type=click.Choice(DATASETS), default="digits", show_default=True)
@click.option("--data-dir", type=GivenPath(path_type=Path), help=DATA_DIR_HELP)
@click.option("--trials", "count", type=click.IntRange(1), default=20, show_default=True, help="Trials in all.")
@click.option("--epochs", type=click.IntRange(1), default=3, show_default=True, help="Epochs of a trial.")
@click.option("--train-images", type=click.IntRange(BATCH_SIZES[1]), help="Training images of a trial.  [default: all]")
@click.option("--depth", type=click.IntRange(1), default=6, show_default=True, help="Blocks of a transformer.")
@click.option("--augment", type=click.Choice(AUGMENTATIONS), default="none", show_default=True)
@click.option("--track", is_flag=True, help="Record each trial with MLflow, as train.py does.")
@click.option(
    "--objective",
    type=click.Choice(["accuracy", "frontier"]),
    default="accuracy",
    show_default=True,
    help="frontier: accuracy and speed, as measured by latency --preset frontier, of a vitbn over its geometry.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
@click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True)
@click.option("--output", type=GivenPath(path_type=Path), default=SEARCHES, show_default=True, help="Folder.")
@vitbn_packages.one_line_errors()
def tune(
    model: ModelName,
    dataset: str,
    data_dir: Path | None,
    count: int,
    epochs: int,
    train_images: int | None,
    depth: int,
    augment: Augmentation,
    track: bool,
    objective: str,
    seed: int,
    device: str,
    output: Path,
) -> None:
    """Search learning rate and batch size, or the geometry (Ctrl-C keeps all finished trials)."""
    from models.training.recipe import choose_device

    check_installed()
    data = part_of(load_dataset(dataset, data_dir), train_images)
    speed = objective == "frontier"
    if speed:
        depth_given = click.get_current_context().get_parameter_source("depth") is not ParameterSource.DEFAULT
        if model != "vitbn" or depth_given or track:
            raise click.UsageError(
                "expected --objective frontier with only --model vitbn, its sizes, --augment and seed"
            )
        space = GEOMETRY
    else:
        space = {
            "lr": Axis(LEARNING_RATES[model]),
            "batch_size": Axis(BATCH_SIZES),
            "depth": Axis((depth, depth)),
            "schedule": Axis(("constant",), listed=True),
        }
    counts = len(data.train_labels), len(data.test_labels)
    search = Search(model, dataset, space, epochs, *counts, seed, augment, speed)
    _run(search, data, choose_device(device), count, output, track)


def part_of(data: Dataset, train_images: int | None) -> Dataset:
    """The dataset of a search: held-out training images are its test images, the first others its training images.

    Raises DataError for more `train_images` than there are.
    """
    part = hold_out(data, min(5000, len(data.train_labels) // 5))
    available = len(part.train_labels)
    if train_images is not None and train_images > available:
        raise DataError(
            f"{data.name}: expected --train-images up to the {available} not held out, found {train_images}"
        )
    return part.first(train_images)


def _run(search: Search, data: Dataset, device: str, count: int, output: Path, track: bool) -> None:
    """Runs trials until there are `count`, prints a line for each, and writes the results to `output`."""
    path = output / f"{'frontier' if search.speed else search.model}.trials.json"
    trials = read(path, search)
    click.echo(
        f"{search.model} on {search.train_images} images of {search.dataset}, measured on {search.held_out_images} "
        f"held out; epochs a trial: {search.epochs}; {device}, seed {search.seed}"
    )
    click.echo("  ".join(name for name, _ in _cells(search, trials)))
    for number in range(1, len(trials) + 1):
        click.echo(_row(search, trials[:number]))
    try:
        for trial in run_trials(search, data, device, trials, count, path, track):
            trials.append(trial)
            click.echo(_row(search, trials))
    except KeyboardInterrupt:
        click.echo(f"Interrupted: kept {len(trials)} of {count} trials, the same command goes on")
        if front(trials):
            write_results(search, trials, output)
        raise SystemExit(130) from None
    written = write_results(search, trials, output)
    click.echo(f"Wrote {', '.join(file.name for file in (path, *written))} in {output}")
    if search.speed:
        click.echo(f"On the frontier: trials {', '.join(str(trials.index(trial) + 1) for trial in front(trials))}")
    else:
        click.echo(f"Train with the best: {shlex.join(['vitbn', 'train', '--params', str(written[-1])])}")


def run_trials(
    search: Search,
    data: Dataset,
    device: str,
    earlier: list[Trial],
    count: int,
    path: Path,
    track: bool,
) -> Iterator[Trial]:
    """Yields each new trial once the file `path` has it, until there are `count` with the `earlier` ones.

    If speed counts, the checkpoints are kept in the folder `trials` beside the file.
    """
    import torch

    from models.training.machine_description import commit, describe

    trials, environment = list(earlier), describe(torch.get_num_threads(), device) | {"commit": commit()}
    if len(trials) < count:
        write(path, search, trials, environment)  # raises OSError now, not after a trial
    while len(trials) < count:
        parameters = propose(search, trials)
        with tempfile.TemporaryDirectory() as folder:
            name = f"{len(trials) + 1:03d}" if search.speed else f"{search.model}-trial"
            checkpoint = (path.parent / "trials" if search.speed else Path(folder)) / f"{name}.safetensors"
            trials.append(run_trial(search, data, device, parameters, checkpoint, track))
        write(path, search, trials, environment)
        yield trials[-1]


def run_trial(search: Search, data: Dataset, device: str, parameters: Values, checkpoint: Path, track: bool) -> Trial:
    """Trains a network with the parameters, measures it, and writes its checkpoint. With `track` MLflow keeps it, too.

    A failed training gives a trial with an error.
    """
    from models.training import tracking
    from models.training.loop import train
    from models.training.recipe import TrainingError, configure

    values: dict[str, Any] = {"model": search.model, "epochs": search.epochs, "seed": search.seed, "device": device}
    values |= {**parameters, "augment": search.augment, "augment_test": search.augment != "none"}
    if search.speed:
        last_block, patch = (values.pop("last_heads"), HEAD_FEATURES), values.pop("patch")
        values |= {"patch_size": (patch, patch), "dim_head": HEAD_FEATURES, "class_attention": last_block, **RECIPE}
    config, options = configure(data, values)
    start = time.perf_counter()
    try:
        epochs = train(config, data, options, checkpoint)
        if track:
            epochs = tracking.track(epochs, checkpoint, False, click.echo)
        *_, last = epochs
    except tracking.TrackingError:
        raise
    except TrainingError as error:
        return Trial(parameters, None, time.perf_counter() - start, str(error))
    speed = _images_per_s(checkpoint) if search.speed else None
    return Trial(parameters, last.test_accuracy, time.perf_counter() - start, None, speed)


def write_results(search: Search, trials: list[Trial], output: Path) -> list[Path]:
    """Writes plots and, if accuracy alone counts, the best parameters for `models/train.py --params`.

    The parameters omit the epochs, since a trial has few, and the accuracy, since the best of many trials is too high.
    Returns the paths.
    """
    from benchmarks.studies import search_plots

    if search.speed:
        files = {"frontier.png": search_plots.frontier(search, trials)}
    else:
        options: dict[str, Any] = {"model": search.model, "dataset": search.dataset, **best(trials).parameters}
        if search.model == "cnn":
            del options["depth"]
        if search.augment != "none":
            options |= {"augment": search.augment, "augment_test": True}
        files = {
            f"{search.model}.convergence.png": search_plots.convergence(search, trials),
            f"{search.model}.plane.png": search_plots.plane(search, trials),
            f"{search.model}.best.json": json.dumps(options, indent=2).encode(),
        }
    for name, content in files.items():
        write_atomically(output / name, content)
    return [output / name for name in files]


def _cells(search: Search, trials: list[Trial]) -> list[tuple[str, str]]:
    """The columns of a printed line, each with the text of the last trial."""
    last = trials[-1] if trials else Trial({}, None, 0.0)
    accuracies = [trial.accuracy for trial in trials if trial.accuracy is not None]
    cells = [
        ("trial", str(len(trials))),
        ("held-out accuracy %", "failed" if last.accuracy is None else f"{100 * last.accuracy:.2f}"),
        ("best so far %", f"{100 * max(accuracies):.2f}" if accuracies else ""),
        *([("images/s, best way", f"{last.images_per_s:,.0f}" if last.images_per_s else "")] if search.speed else []),
        ("duration s", f"{last.duration_s:.1f}"),
    ]
    for name in search.searched:
        value = last.parameters.get(name, "")
        cells.append((name.replace("_", " ").rjust(8), f"{value:.2e}" if isinstance(value, float) else str(value)))
    return cells


def _row(search: Search, trials: list[Trial]) -> str:
    return "  ".join(text.rjust(len(name)) for name, text in _cells(search, trials))


if __name__ == "__main__":
    tune(prog_name="vitbn tune")
