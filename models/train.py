"""Command line of the training stage: dataset -> checkpoint. `python models/train.py --help`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from models.config import MODEL_NAMES, ConfigError, ModelConfig, ModelName
from models.data import DATASETS, DataError, load_dataset

if TYPE_CHECKING:
    from models.training import Epoch

CHECKPOINTS = Path("checkpoints")


def _finite(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"expected a finite number, found {value}")
    return value


@click.command()
@click.option("--model", type=click.Choice(MODEL_NAMES), default="vitbn", show_default=True)
@click.option("--dataset", type=click.Choice(DATASETS), default="digits", show_default=True)
@click.option("--data-dir", type=click.Path(path_type=Path), help="Folder with the MNIST idx files, else $MNIST_DIR.")
@click.option("--depth", type=click.IntRange(1), default=6, show_default=True, help="Blocks; the CNN has none.")
@click.option("--epochs", type=click.IntRange(1), default=10, show_default=True)
@click.option("--batch-size", type=click.IntRange(2), default=100, show_default=True)
@click.option("--lr", type=click.FloatRange(0, 10, min_open=True), callback=_finite, default=0.001, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda", "mps"]), default="auto", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Default: checkpoints/<model>-<dataset>.safetensors")
@click.option("--resume", is_flag=True, help="Go on where the run at --output stopped.")
def train(
    model: ModelName,
    dataset: str,
    data_dir: Path | None,
    depth: int,
    epochs: int,
    batch_size: int,
    lr: float,
    seed: int,
    device: str,
    output: Path | None,
    resume: bool,
) -> None:
    """Train a model and write its checkpoint after every epoch (Ctrl-C keeps the last finished one)."""
    from models import training

    try:
        data = load_dataset(dataset, data_dir)
        height, width = data.train_images.shape[2:]
        config = ModelConfig(model=model, image_size=(height, width), depth=depth, labels=data.labels)
        options = training.TrainingOptions(epochs, batch_size, lr, seed, training.choose_device(device))
        output = output or CHECKPOINTS / f"{model}-{dataset}.safetensors"
        click.echo(f"{model} on {len(data.train_labels)} images of {dataset}, {options.device}, seed {seed}")
        with _progress(epochs * len(data.train_labels)) as on_batch:
            last = _print_epochs(training.train(config, data, options, output, resume, on_batch))
    except (ConfigError, DataError, training.TrainingError, OSError) as error:
        raise click.ClickException(str(error)) from error
    if last is None:
        raise click.ClickException(f"{output}: expected fewer than {epochs} finished epochs, found them all")
    click.echo(f"Wrote {output} and {output.with_suffix('.json')}")


@contextmanager
def _progress(images: int) -> Iterator[Callable[[int, float], None]]:
    """A bar over all images of all epochs, on the terminal alone."""
    from tqdm import tqdm

    with tqdm(total=images, unit=" images", unit_scale=True, leave=False, disable=None) as bar:

        def on_batch(count: int, loss: float) -> None:
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            bar.update(count)

        yield on_batch


def _print_epochs(epochs: Iterator[Epoch]) -> Epoch | None:
    """Prints a row an epoch and returns the last; on Ctrl-C says what is kept and exits with 130, as a shell does."""
    last = None
    _print_above_the_bar("epoch  training s  test s  training loss  test accuracy %")
    try:
        for last in epochs:
            _print_above_the_bar(
                f"{last.epoch:5d}  {last.training_time_s:10.2f}  {last.test_time_s:6.2f}"
                f"  {last.training_loss:13.4f}  {100 * last.test_accuracy:15.2f}"
            )
    except KeyboardInterrupt:
        kept = f"kept epoch {last.epoch}" if last else "no epoch was finished"
        _print_above_the_bar(f"Interrupted: {kept}")
        raise SystemExit(130) from None
    return last


def _print_above_the_bar(line: str) -> None:
    from tqdm import tqdm

    with tqdm.external_write_mode():
        click.echo(line)  # flushes, so that a row is seen when its epoch ends


if __name__ == "__main__":
    train()
