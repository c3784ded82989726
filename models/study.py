"""Command line: dataset -> tables and plots of a study."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from click.core import ParameterSource

import vitbn  # noqa: F401  # says in one line that another `models` hides ours
from models.catalog import PRETRAINED
from models.config import ModelName
from models.studies import adaptation, depths, designed, dnn, frontier, learning_rates, norm_choice, optimised, shift
from models.studies.protocol import Study
from models.studies.running import StudyError

if TYPE_CHECKING:
    from models.studies.running import Run, Track
    from models.training import Epoch

Choice = TypeVar("Choice")
# Facts of a machine, not of a study.
UNSAID = {"output", "reinforced", "data_dir", "emnist_dir", "checkpoints", "params", "device", "track"}


def _common(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        _output,
        click.option("--quick", is_flag=True, help="A small version, in a few minutes on two cores."),
        _data_dir,
        click.option("--device", type=click.Choice(["auto", "cpu", "cuda", "mps"]), default="auto", show_default=True),
    ):
        command = option(command)
    return command


def _shrinkable(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option(
        "--train-images", type=click.IntRange(2), help="Use only the first N training images.", metavar="N"
    )(command)
    command = click.option("--epochs", type=click.IntRange(1), help="Epochs.  [default: as published]")(command)
    forms = click.Choice(["served", "plain"])
    command = click.option("--track", is_flag=True, help="Record each run with MLflow, as train.py does.")(command)
    command = click.option("--form", type=forms, default="served", show_default=True, help="As in train.py.")(command)
    return _common(command)


def _rates(rates: Sequence[float]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    names = click.Choice([str(rate) for rate in rates])
    return click.option("--rate", type=names, multiple=True, help="Only this rate, repeatable.  [default: all]")


_checkpoints = click.option(
    "--checkpoints", type=click.Path(path_type=Path), default=PRETRAINED, help="Default: the shipped checkpoints."
)
_reinforced = click.option("--reinforced", metavar="FOLDER", help="As in train.py: saves the teacher's time.")
_output = click.option("--output", type=click.Path(path_type=Path), required=True, help="A folder of its own.")
_data_dir = click.option("--data-dir", type=click.Path(path_type=Path), help="Folder with the images, else $MNIST_DIR.")
_seeds = click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs of each network.")


@click.group()
def study() -> None:
    """Carry out a published study: a JSON file, a table and plots. The same command continues a stopped study."""


@study.command("learning-rates")
@_seeds
@_rates(learning_rates.RATES)
@_shrinkable
def run_learning_rates(rate: tuple[str, ...], **options: Any) -> None:
    """ViT, ViTBNFFN and ViTBN at three learning rates, 30 epochs."""
    rates = _chosen(learning_rates.RATES, rate)
    _train(learning_rates.study(rates, _all_images(**options)), **options)


@study.command("depths")
@_rates(depths.RATES)
@click.option("--depth", type=click.IntRange(1), multiple=True, help="Only this depth, repeatable.  [default: 2 to 7]")
@_seeds
@_shrinkable
def run_depths(rate: tuple[str, ...], depth: tuple[int, ...], **options: Any) -> None:
    """ViT and ViTBNFFN of depth 2 to 7 on distorted images, 10 epochs."""
    rates, blocks = _chosen(depths.RATES, rate), sorted({*depth}) or depths.DEPTHS
    _train(depths.study(rates, blocks, _all_images(**options)), **options)


@study.command("dnn")
@_shrinkable
def run_dnn(**options: Any) -> None:
    """Three hidden layers of 100 with sigmoids, with and without BatchNorm, 15 epochs."""
    _train(dnn.STUDY, **options)


@study.command("frontier")
@_checkpoints
@_shrinkable
def run_frontier(checkpoints: Path, **options: Any) -> None:
    """ViTBN of depth 1, 2, 3, 4 and 6 and the CNN: accuracy against work. Uses shipped checkpoints."""
    _train(frontier.study(checkpoints), **options)


@study.command("designed")
@click.option("--network", type=click.Choice(list(designed.NETWORKS)), multiple=True, help="Only this, repeatable.")
@_reinforced
@_seeds
@_shrinkable
def run_designed(network: tuple[str, ...], reinforced: str | None, **options: Any) -> None:
    """ViTBNs designed for their cost after the rewrites, taught by the CNN, 40 epochs."""
    _train(designed.study(_chosen(tuple(designed.NETWORKS), network), reinforced), **options)


@study.command("six-blocks")
@_reinforced
@_shrinkable
def run_six_blocks(reinforced: str | None, **options: Any) -> None:
    """ViT, ViTBNFFN, ViTBN, and ViTBN with a late CLS token: six blocks, the recipe of `designed`, 12 epochs."""
    _train(designed.study(tuple(designed.SIX_BLOCKS), reinforced), **options)


@study.command("norms")
@click.option("--norm", type=click.Choice(norm_choice.NORMS), multiple=True, help="Only this, repeatable.")
@click.option("--way", type=click.Choice(list(norm_choice.WAYS)), multiple=True, help="Only this way of training.")
@_seeds
@click.option("--dataset", type=click.Choice(norm_choice.DATASETS), default="mnist", show_default=True)
@_shrinkable
def run_norms(norm: tuple[ModelName, ...], way: tuple[str, ...], **options: Any) -> None:
    """LayerNorm, BatchNorm and seven others at a usual and a high learning rate and with a recipe, 10 epochs."""
    ways = _chosen(tuple(norm_choice.WAYS), way)
    _train(norm_choice.study(ways, _chosen(norm_choice.NORMS, norm)), **options)


@study.command("optimised")
@click.option(
    "--params",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="A file that models/tune.py wrote, or a folder of them.",
)
@_shrinkable
def run_optimised(params: tuple[Path, ...], **options: Any) -> None:
    """Each model at its searched learning rate and batch size, 30 epochs."""
    _train(optimised.study(params), **options)


@study.command("shift")
@_checkpoints
@click.option("--emnist-dir", type=click.Path(path_type=Path), help="EMNIST digits' idx files, else $EMNIST_DIR.")
@_common
def run_shift(
    checkpoints: Path, emnist_dir: Path | None, output: Path, quick: bool, data_dir: Path | None, device: str
) -> None:
    """The checkpoints trained on MNIST on digits of other people: accuracy and time."""
    from models.data import load_dataset
    from models.plots.results import write
    from models.training import choose_device

    with _one_line_errors():
        networks = shift.checkpoints(checkpoints)
        emnist = shift.emnist_images(emnist_dir)
        if emnist is None:
            click.echo(f"EMNIST digits: not measured: no EMNIST files in {emnist_dir or '--emnist-dir or $EMNIST_DIR'}")
        mnist = load_dataset("mnist", data_dir)
        sets = shift.image_sets((mnist.test_images, mnist.test_labels), emnist, quick)
        device = choose_device(device)
        rows = shift.measure(networks, sets, device, lambda name, number: click.echo(f"{name}: round {number}"))
        _say_written(write(output, shift.result(rows, quick, _command_line(), device), shift.plots))


@study.command("adaptation")
@_checkpoints
@_output
@_data_dir
def run_adaptation(checkpoints: Path, output: Path, data_dir: Path | None) -> None:
    """The checkpoints on coarse digits, with BatchNorm's statistics from 200 unlabelled images and without."""
    from models.data import load_dataset
    from models.plots.results import write

    with _one_line_errors():
        networks, mnist = shift.checkpoints(checkpoints), load_dataset("mnist", data_dir)
        rows = list(adaptation.measure(networks, (mnist.test_images, mnist.test_labels)))
        _say_written(write(output, adaptation.result(rows, _command_line()), adaptation.plots))


@study.command("claims")
@click.option("--results", type=click.Path(path_type=Path), default="benchmarks/results/studies", show_default=True)
@click.option("--page", type=click.Path(path_type=Path), default="docs/claims.md", show_default=True)
def run_claims(results: Path, page: Path) -> None:
    """Write the tables and pictures of the page on the published claims anew, from the results of the studies."""
    from models.studies.claims import write

    with _one_line_errors():
        paths = write(page, results)
    click.echo(f"Wrote {', '.join(map(str, paths))}")


def _chosen(every: Sequence[Choice], names: Sequence[str]) -> tuple[Choice, ...]:
    """Each once, in the study's order; all without names."""
    return tuple(each for each in every if not names or str(each) in names)


def _all_images(quick: bool, train_images: int | None, **unused: Any) -> bool:
    return not (quick or train_images)


def _train(
    study: Study,
    output: Path,
    quick: bool,
    data_dir: Path | None,
    device: str,
    epochs: int | None,
    train_images: int | None,
    form: Literal["served", "plain"],
    track: bool,
    dataset: str = "mnist",
    seeds: int = 1,
) -> None:
    from models.data import load_dataset
    from models.studies.protocol import carry_out
    from models.training import choose_device

    with _one_line_errors():
        data = load_dataset(dataset, data_dir)
        scope = study.scope(data, choose_device(device), quick, epochs, train_images, form=form, seeds=seeds)
        click.echo(study.question)
        if scope.reduced:
            click.echo(f"Not the whole study: {scope.reduced}")
        click.echo(f"epoch  {'run':26}  training s  test s  training loss  accuracy %")
        try:
            _say_written(carry_out(study, scope, _command_line(), output, _print, _tracker() if track else None))
        except KeyboardInterrupt:
            click.echo("Interrupted: finished epochs are kept, the same command goes on")
            raise SystemExit(130) from None


def _tracker() -> Track:
    from models import tracking

    return partial(tracking.track, report=click.echo)


def _print(run: Run, epoch: Epoch) -> None:
    click.echo(
        f"{epoch.epoch:5d}  {run.label:26}  {epoch.training_time_s:10.2f}  {epoch.test_time_s:6.2f}"
        f"  {epoch.training_loss:13.4f}  {100 * epoch.test_accuracy:10.2f}"
    )


def _say_written(paths: list[Path]) -> None:
    click.echo(f"Wrote {', '.join(path.name for path in paths)} in {paths[0].parent}")


def _command_line() -> str:
    context = click.get_current_context()
    words = ["python models/study.py", str(context.info_name)]
    for name, value in context.params.items():
        if name not in UNSAID and value and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            option = f"--{name.replace('_', '-')}"
            values = value if isinstance(value, tuple) else [value]
            words += [option if each is True else f"{option} {each}" for each in values]
    return " ".join([*words, "--output DIR"])


@contextmanager
def _one_line_errors() -> Iterator[None]:
    from models.checkpoint import CheckpointError
    from models.config import ConfigError
    from models.data import DataError
    from models.training import TrainingError

    try:
        yield
    except (CheckpointError, ConfigError, DataError, StudyError, TrainingError, OSError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    study()
