"""Command line: dataset -> results, tables and pictures of a study."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

import vitbn  # noqa: F401  # says in one line that another `models` hides ours
from models.catalog import PRETRAINED
from models.studies.grids import STUDIES, Fields, Study
from models.studies.running import StudyError

if TYPE_CHECKING:
    from models.checkpoint import Checkpoint
    from models.config import ModelConfig
    from models.studies.running import Run, Track
    from models.studies.study import Scope
    from models.train import Epoch

# Facts of a machine, not of a study.
UNSAID = {"output", "teacher_cache", "data_dir", "emnist_dir", "checkpoints", "params", "device", "track"}
BEST, RECIPE = ".best.json", "recipe.json"
_path = click.Path(path_type=Path)
_device = click.Choice(["auto", "cpu", "cuda", "mps"])


def _output() -> click.Option:
    return click.Option(["--output"], type=_path, required=True, help="A folder of its own.")


def _data_dir() -> click.Option:
    return click.Option(["--data-dir"], type=_path, help="Folder with the images, else $MNIST_DIR.")


def _checkpoints() -> click.Option:
    help_ = "Default: the shipped checkpoints."
    return click.Option(["--checkpoints"], type=_path, default=PRETRAINED, help=help_)


def _quick() -> click.Option:
    return click.Option(["--quick"], is_flag=True, help="A small version, in a few minutes on two cores.")


def _list(context: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    click.echo(f"{'study':16}{'runs':>5}{'epochs':>8}{'hours':>7}  question")
    for name, study in STUDIES.items():
        runs = 1
        for axis in study.axes.values():
            runs *= len(axis)
        counted = str(runs) if runs else "-"
        click.echo(f"{name:16}{counted:>5}{study.epochs:8}{study.hours:7.1f}  {study.question}")
    for name in ("shift", "adaptation", "layout"):
        click.echo(f"{name:16}{'-':>5}{'-':>8}{0.1:7.1f}  {COMMANDS[name].help}")
    click.echo("Hours of all images with one seed on one thread; --seeds 3 takes three times as long.")
    context.exit()


@click.group()
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="Runs and hours of each.")
def study() -> None:
    """Carry out a study: a JSON file, a table and pictures. The same command continues a stopped study."""


def _command(name: str, grid: Study) -> click.Command:
    options = [
        click.Option(
            [f"--{axis}"], type=click.Choice(list(choices)), multiple=True, help=f"Only this {axis}, repeatable."
        )
        for axis, choices in grid.axes.items()
        if choices
    ]
    if name == "optimised":
        help_ = "A file that models/tune.py wrote, or a folder of them."
        options.append(click.Option(["--params"], type=_path, multiple=True, required=True, help=help_))
    if name == "frontier":
        options.append(_checkpoints())
    if "teacher" in grid.fixed:
        help_ = "As in train.py: saves the teacher's time."
        options.append(click.Option(["--teacher-cache"], metavar="FOLDER", help=help_))
    if len(grid.datasets) > 1:
        datasets = click.Choice(grid.datasets)
        options.append(click.Option(["--dataset"], type=datasets, default=grid.datasets[0], show_default=True))
    options += [
        click.Option(["--seeds"], type=click.IntRange(1), default=1, show_default=True, help="Runs of each network."),
        click.Option(["--epochs"], type=click.IntRange(1), help=f"Epochs.  [default: {grid.epochs}]"),
        click.Option(
            ["--train-images"], type=click.IntRange(2), metavar="N", help="Use only the first N training images."
        ),
        click.Option(
            ["--last-block"],
            type=click.Choice(["row", "all"]),
            default="row",
            show_default=True,
            help="As in train.py.",
        ),
        click.Option(["--track"], is_flag=True, help="Record each run with MLflow, as train.py does."),
        click.Option(["--device"], type=_device, default="auto", show_default=True),
        _data_dir(),
        _quick(),
        _output(),
    ]
    return click.Command(name, params=list(options), callback=partial(_train, name, grid), help=grid.question)


def _train(
    name: str,
    grid: Study,
    output: Path,
    data_dir: Path | None,
    device: str,
    track: bool,
    last_block: str,
    quick: bool,
    epochs: int | None,
    train_images: int | None,
    seeds: int,
    dataset: str = "mnist",
    teacher_cache: str | None = None,
    checkpoints: Path | None = None,
    params: Sequence[Path] = (),
    **chosen: Sequence[str],
) -> None:
    from models.data import load_dataset
    from models.studies import frontier, summary
    from models.studies import study as studying
    from models.train import choose_device

    with _one_line_errors():
        data = load_dataset(dataset, data_dir)
        options = {"last_block": last_block} | ({"teacher_cache": teacher_cache} if teacher_cache else {})
        scope = studying.scope_of(grid, data, choose_device(device), quick, epochs, train_images, seeds, **options)
        if params:
            grid = replace(grid, axes={"network": _searched(params, grid, scope)})
        there: dict[ModelConfig, Checkpoint] = {}
        if checkpoints:
            grid = replace(grid, fixed=_fields(checkpoints / RECIPE, grid, scope))
            there = {} if quick or train_images else frontier.finished(checkpoints, dataset)
        runs = [run for run in studying.runs(grid, scope, chosen) if run.config not in there]
        click.echo(grid.question)
        if scope.reduced:
            click.echo(f"Not the whole study: {scope.reduced}")
        click.echo(f"epoch  {'run':26}  training s  test s  training loss  accuracy %")
        try:
            result, trained = studying.carry_out(
                name, grid, runs, scope, _command_line(), output, _print, _tracker() if track else None
            )
        except KeyboardInterrupt:
            click.echo("Interrupted: finished epochs are kept, the same command goes on")
            raise SystemExit(130) from None
        if checkpoints:
            result["rows"] = frontier.rows(studying.runs(grid, scope, chosen), there, trained)
            _say_written(frontier.write(output, result))
        else:
            _say_written(summary.write(output, result))


def _searched(params: Sequence[Path], grid: Study, scope: Scope) -> dict[str, Fields]:
    """A choice for each file of a search, named by its model."""
    files = [file for path in params for file in (sorted(path.glob(f"*{BEST}")) if path.is_dir() else [path])]
    if not files:
        raise StudyError(f"{params[0]}: expected files *{BEST}, as models/tune.py writes, found none")
    axis: dict[str, Fields] = {}
    for file in files:
        fields = _fields(file, grid, scope)
        if (name := fields["model"]) in axis:
            raise StudyError(f"{file}: expected another model than in the files before, found {name}")
        axis[name] = fields
    return axis


def _fields(path: Path, grid: Study, scope: Scope) -> Fields:
    """Of a file of models/tune.py or a recipe; refuses what no run can have."""
    from models.studies.study import run_at

    dataset = scope.dataset.name
    try:
        values = {"model": "vitbn", **json.loads(path.read_bytes())}
        if (found := values.pop("dataset", dataset)) != dataset:
            raise StudyError(f"expected options for {dataset}, found options for {found}")
        if values.get("lr") is None:  # of a search; the default would be another study
            raise StudyError("expected lr, found none")
        run_at(replace(grid, axes={}, fixed=values), scope, {}, 0)
    except (OSError, ValueError, TypeError) as error:
        raise StudyError(f"{path}: expected a JSON object of options for models/train.py, found {error}") from error
    except StudyError as error:
        raise StudyError(f"{path}: {error}") from error
    return values


def _shift(
    checkpoints: Path, emnist_dir: Path | None, output: Path, quick: bool, data_dir: Path | None, device: str
) -> None:
    from models.data import load_dataset
    from models.studies import digits
    from models.train import choose_device

    with _one_line_errors():
        networks = digits.trained_on_mnist(checkpoints)
        emnist = digits.emnist_images(emnist_dir)
        if emnist is None:
            click.echo(f"EMNIST digits: not measured: no EMNIST files in {emnist_dir or '--emnist-dir or $EMNIST_DIR'}")
        mnist = load_dataset("mnist", data_dir)
        sets = digits.image_sets((mnist.test_images, mnist.test_labels), emnist, quick)
        device = choose_device(device)
        rows = digits.shift(networks, sets, device, lambda name, number: click.echo(f"{name}: round {number}"))
        _say_written(digits.write(output, digits.shift_result(rows, quick, _command_line(), device)))


def _adaptation(checkpoints: Path, output: Path, data_dir: Path | None) -> None:
    from models.data import load_dataset
    from models.studies import digits

    with _one_line_errors():
        networks, mnist = digits.trained_on_mnist(checkpoints), load_dataset("mnist", data_dir)
        rows = list(digits.adaptation(networks, (mnist.test_images, mnist.test_labels)))
        _say_written(digits.write(output, digits.adaptation_result(rows, _command_line())))


def _layout(device: str, output: Path, data_dir: Path | None) -> None:
    from models.data import load_dataset
    from models.studies import layout

    with _one_line_errors():
        dataset = load_dataset("mnist", data_dir)
        runs = layout.measure(dataset, lambda number: click.echo(f"round {number}"), device=device)
        _say_written(layout.write(output, layout.result(runs, _command_line(), device)))


def _claims(results: Path, page: Path) -> None:
    from models.studies.claims import write

    with _one_line_errors():
        paths = write(page, results)
    click.echo(f"Wrote {', '.join(map(str, paths))}")


def _other(callback: Callable[..., None], help_: str, *params: click.Option) -> click.Command:
    return click.Command(callback.__name__.strip("_"), params=list(params), callback=callback, help=help_)


COMMANDS = {
    each.name or "": each
    for each in (
        *(_command(name, grid) for name, grid in STUDIES.items()),
        _other(
            _shift,
            "The checkpoints trained on MNIST on digits of other people: accuracy and time.",
            _checkpoints(),
            click.Option(["--emnist-dir"], type=_path, help="EMNIST digits' idx files, else $EMNIST_DIR."),
            click.Option(["--device"], type=_device, default="auto", show_default=True),
            _data_dir(),
            _quick(),
            _output(),
        ),
        _other(
            _adaptation,
            "The checkpoints on coarse digits, with BatchNorm's statistics from 200 unlabelled images and without.",
            _checkpoints(),
            _data_dir(),
            _output(),
        ),
        _other(
            _layout,
            "Times of BatchNorm2d after a transpose, as published, beside those of our layout.",
            click.Option(["--device"], type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True),
            _data_dir(),
            _output(),
        ),
        _other(
            _claims,
            "Write the tables and pictures of the page on the published claims anew, from the results of the studies.",
            click.Option(["--results"], type=_path, default=Path("benchmarks/results/studies"), show_default=True),
            click.Option(["--page"], type=_path, default=Path("docs/claims.md"), show_default=True),
        ),
    )
}
for command in COMMANDS.values():
    study.add_command(command)


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
    from models.train import TrainingError

    try:
        yield
    except (CheckpointError, ConfigError, DataError, StudyError, TrainingError, OSError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    study()
