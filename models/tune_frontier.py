"""A trial of the frontier: geometry -> checkpoint, held-out accuracy and speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from models.data import Dataset
from models.files import write_atomically
from models.frontier_search import FrontierSearch, FrontierTrial, Geometry, front, propose, read, write

BATCH_SIZE, LEARNING_RATE = 100, 3e-3
TRIALS, PLOT = "frontier.trials.json", "frontier.png"

Measure = Callable[[Path], float]
"""A checkpoint -> images a second of its rewritten file."""


def run(search: FrontierSearch, data: Dataset, device: str, count: int, output: Path, measure: Measure) -> None:
    from models.plots.search_plots import frontier

    trials = read(output / TRIALS, search)
    click.echo(
        f"vitbn on {search.train_images} images of {search.dataset}, measured on {search.held_out_images} held out; "
        f"epochs a trial: {search.epochs}; {device}, seed {search.seed}"
    )
    click.echo("trial  depth  dim  heads  last heads  mlp  held-out accuracy %  images/s  duration s")
    for number, trial in enumerate(trials, 1):
        click.echo(_row(number, trial))
    try:
        for trial in run_trials(search, data, device, trials, count, output, measure):
            trials.append(trial)
            click.echo(_row(len(trials), trial))
    except KeyboardInterrupt:
        click.echo(f"Interrupted: kept {len(trials)} of {count} trials, the same command goes on")
        raise SystemExit(130) from None
    finally:
        if kept := front(trials):
            write_atomically(output / PLOT, frontier(search, trials))
            click.echo(f"On the frontier: trials {', '.join(str(trials.index(trial) + 1) for trial in kept)}")
    click.echo(f"Wrote {output / TRIALS}, {PLOT} and the checkpoints beside it")


def run_trials(
    search: FrontierSearch,
    data: Dataset,
    device: str,
    earlier: list[FrontierTrial],
    count: int,
    output: Path,
    measure: Measure,
) -> Iterator[FrontierTrial]:
    """As `models.tune.run_trials`."""
    import torch

    from models.environment import describe

    trials, environment = list(earlier), describe(torch.get_num_threads(), device)
    if len(trials) < count:
        write(output / TRIALS, search, trials, environment)  # as there
    while len(trials) < count:
        checkpoint = output / "trials" / f"{len(trials) + 1:03d}.safetensors"
        trials.append(run_trial(search, data, device, propose(search, trials), checkpoint, measure))
        write(output / TRIALS, search, trials, environment)
        yield trials[-1]


def run_trial(
    search: FrontierSearch, data: Dataset, device: str, geometry: Geometry, checkpoint: Path, measure: Measure
) -> FrontierTrial:
    from models.train import TrainingError, TrainingOptions
    from models.training import train

    options = TrainingOptions(
        epochs=search.epochs,
        batch_size=BATCH_SIZE,
        lr=LEARNING_RATE,
        seed=search.seed,
        device=device,
        schedule="one-cycle",
        weight_decay=0.05,
        clip=1.0,
    )
    start = time.perf_counter()
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    try:
        *_, last = train(geometry.config(data), data, options, checkpoint)
    except TrainingError as error:
        return FrontierTrial(geometry, None, None, time.perf_counter() - start, str(error))
    speed = measure(checkpoint)
    return FrontierTrial(geometry, last.test_accuracy, speed, time.perf_counter() - start)


def _row(number: int, trial: FrontierTrial) -> str:
    geometry = trial.geometry
    accuracy = "failed" if trial.accuracy is None else f"{100 * trial.accuracy:.2f}"
    speed = "" if trial.images_per_s is None else f"{trial.images_per_s:,.0f}"
    return (
        f"{number:5}  {geometry.depth:5}  {geometry.dim:3}  {geometry.heads:5}  {geometry.last_heads:10}"
        f"  {geometry.mlp_dim:3}  {accuracy:>19}  {speed:>8}  {trial.duration_s:10.1f}"
    )
