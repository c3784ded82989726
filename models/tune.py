"""Command line: dataset -> searched parameters for models/train.py.

Trials never use test images. The same command continues the search.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

import vitbn  # also reports another `models` that hides ours
from models.config import AUGMENTATIONS, Augmentation, ConfigError, ModelName
from models.data import DATA_DIR_HELP, DATASETS, DataError, Dataset, hold_out, load_dataset
from models.files import write_atomically
from models.search import (
    BATCH_SIZES,
    LEARNING_RATES,
    Parameters,
    Search,
    SearchError,
    Trial,
    best,
    check_installed,
    propose,
    read,
    searched_names,
    write,
)

SEARCHES = Path("searches")
COLUMNS = {"lr": "learning rate", "batch_size": "batch size", "depth": "depth", "schedule": "schedule"}


@click.command()
@click.option("--model", type=click.Choice(list(LEARNING_RATES)), default="vitbn", show_default=True)
@click.option("--dataset", type=click.Choice(DATASETS), default="digits", show_default=True)
@click.option("--data-dir", type=click.Path(path_type=Path), help=DATA_DIR_HELP)
@click.option("--trials", "count", type=click.IntRange(1), default=20, show_default=True, help="Trials in all.")
@click.option("--epochs", type=click.IntRange(1), default=3, show_default=True, help="Epochs of a trial.")
@click.option("--train-images", type=click.IntRange(BATCH_SIZES[1]), help="Training images of a trial.  [default: all]")
@click.option("--depth", type=click.IntRange(1), default=6, show_default=True, help="Blocks of a transformer.")
@click.option("--search-depth", type=click.IntRange(1), nargs=2, metavar="LOW HIGH", help="Instead of one --depth.")
@click.option("--search-schedule", is_flag=True, help="Also try the one-cycle schedule.")
@click.option("--augment", type=click.Choice(AUGMENTATIONS), default="none", show_default=True)
@click.option("--track", is_flag=True, help="Record each trial with MLflow, as train.py does.")
@click.option(
    "--objective",
    type=click.Choice(["accuracy", "frontier"]),
    default="accuracy",
    show_default=True,
    help="frontier: accuracy and measured speed of a vitbn, over its geometry.",
)
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda", "mps"]), default="auto", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=SEARCHES, show_default=True, help="Folder.")
def tune(
    model: ModelName,
    dataset: str,
    data_dir: Path | None,
    count: int,
    epochs: int,
    train_images: int | None,
    depth: int,
    search_depth: tuple[int, int] | None,
    search_schedule: bool,
    augment: Augmentation,
    track: bool,
    objective: str,
    seed: int,
    device: str,
    output: Path,
) -> None:
    """Search learning rate and batch size, or the geometry (Ctrl-C keeps all finished trials)."""
    from models.train import TrainingError, choose_device

    try:
        check_installed()
        data = part_of(load_dataset(dataset, data_dir), train_images)
        if objective == "frontier":
            context = click.get_current_context()
            given = context.get_parameter_source("depth") is not ParameterSource.DEFAULT
            if model != "vitbn" or given or search_depth or search_schedule or augment != "none" or track:
                raise click.UsageError("expected --objective frontier with only --model vitbn, its sizes and seed")
            from models import tune_frontier
            from models.frontier_search import FrontierSearch

            frontier = FrontierSearch(data.name, epochs, len(data.train_labels), len(data.test_labels), seed)
            tune_frontier.run(frontier, data, choose_device(device), count, output, context.obj)
            return
        search = Search(
            model=model,
            dataset=dataset,
            depths=_depths(model, search_depth or (depth, depth)),
            schedules=("constant", "one-cycle") if search_schedule else ("constant",),
            epochs=epochs,
            train_images=len(data.train_labels),
            held_out_images=len(data.test_labels),
            seed=seed,
            augment=augment,
        )
        _run(search, data, choose_device(device), count, output, track)
    except (ConfigError, DataError, SearchError, TrainingError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _depths(model: ModelName, depths: tuple[int, int]) -> tuple[int, int]:
    low, high = depths
    if low > high:
        raise click.BadParameter(f"expected the lower depth first, found {low} and {high}", param_hint="--search-depth")
    if low < high and model == "cnn":
        raise click.BadParameter("expected a transformer, found cnn, which has no depth", param_hint="--search-depth")
    return depths


def part_of(data: Dataset, train_images: int | None) -> Dataset:
    part = hold_out(data, min(5000, len(data.train_labels) // 5))
    left = len(part.train_labels)
    if train_images is not None and train_images > left:
        raise DataError(f"{data.name}: expected --train-images up to the {left} not held out, found {train_images}")
    return replace(part, train_images=part.train_images[:train_images], train_labels=part.train_labels[:train_images])


def _run(search: Search, data: Dataset, device: str, count: int, output: Path, track: bool) -> None:
    path = output / f"{search.model}.trials.json"
    trials = read(path, search)
    click.echo(
        f"{search.model} on {search.train_images} images of {search.dataset}, measured on {search.held_out_images} "
        f"held out; epochs a trial: {search.epochs}; {device}, seed {search.seed}"
    )
    click.echo(_header(search))
    for number in range(1, len(trials) + 1):
        click.echo(_row(search, trials[:number]))
    try:
        for trial in run_trials(search, data, device, trials, count, path, track):
            trials.append(trial)
            click.echo(_row(search, trials))
    except KeyboardInterrupt:
        click.echo(f"Interrupted: kept {len(trials)} of {count} trials, the same command goes on")
        if any(trial.accuracy is not None for trial in trials):
            write_results(search, trials, output)
        raise SystemExit(130) from None
    best_path = write_results(search, trials, output)
    click.echo(f"Wrote {path} and, beside it, {search.model}.convergence.png and {search.model}.plane.png")
    click.echo(f"Train with the best: python models/train.py --params {best_path}")


def run_trials(
    search: Search, data: Dataset, device: str, earlier: list[Trial], count: int, path: Path, track: bool = False
) -> Iterator[Trial]:
    """`count` includes the earlier trials; yields each once `path` has it."""
    import torch

    from models.environment import describe

    trials, environment = list(earlier), describe(torch.get_num_threads(), device)
    if len(trials) < count:
        write(path, search, trials, environment)  # raises OSError now, not after a trial
    while len(trials) < count:
        trials.append(run_trial(search, data, device, propose(search, trials), track))
        write(path, search, trials, environment)
        yield trials[-1]


def run_trial(search: Search, data: Dataset, device: str, parameters: Parameters, track: bool = False) -> Trial:
    """With `track` MLflow keeps the network."""
    from models import tracking
    from models.train import TrainingError, TrainingOptions
    from models.training import train

    config = data.model_config(search.model, parameters.depth)
    options = TrainingOptions(
        epochs=search.epochs,
        batch_size=parameters.batch_size,
        lr=parameters.lr,
        seed=search.seed,
        device=device,
        schedule=parameters.schedule,
        augment=search.augment,
        augment_test=search.augment != "none",
    )
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{search.model}-trial"
        try:
            epochs = train(config, data, options, path)
            if track:
                epochs = tracking.track(epochs, path, False, click.echo)
            *_, last = epochs
        except tracking.TrackingError:
            raise
        except TrainingError as error:
            return Trial(parameters, None, time.perf_counter() - start, str(error))
    return Trial(parameters, last.test_accuracy, time.perf_counter() - start)


def write_results(search: Search, trials: list[Trial], output: Path) -> Path:
    """Returns the best parameters' file, for `models/train.py --params`.

    It omits epochs (few in a trial) and accuracy (the best of many is too high).
    """
    from models.plots.search_plots import convergence, plane

    options: dict[str, Any] = {"model": search.model, "dataset": search.dataset, **asdict(best(trials).parameters)}
    if search.model == "cnn":
        del options["depth"]
    if search.augment != "none":
        options |= {"augment": search.augment, "augment_test": True}
    write_atomically(output / f"{search.model}.convergence.png", convergence(search, trials))
    write_atomically(output / f"{search.model}.plane.png", plane(search, trials))
    path = output / f"{search.model}.best.json"
    write_atomically(path, json.dumps(options, indent=2).encode())
    return path


def _header(search: Search) -> str:
    searched = "".join(f"  {COLUMNS[name]}" for name in searched_names(search))
    return f"trial  held-out accuracy %  best so far %  duration s{searched}"


def _row(search: Search, trials: list[Trial]) -> str:
    last = trials[-1]
    accuracy = "failed" if last.accuracy is None else f"{100 * last.accuracy:.2f}"
    so_far = [100 * trial.accuracy for trial in trials if trial.accuracy is not None]
    row = f"{len(trials):5d}  {accuracy:>19}  {f'{max(so_far):.2f}' if so_far else '':>13}  {last.duration_s:10.1f}"
    for name in searched_names(search):
        value = getattr(last.parameters, name)
        row += f"  {f'{value:.2e}' if name == 'lr' else value:>{len(COLUMNS[name])}}"
    return row


if __name__ == "__main__":
    vitbn.main(["tune", *sys.argv[1:]], prog_name="vitbn")  # with what measures speed
