"""Command line: dataset -> results, tables and pictures of a study."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import vitbn_packages  # first: reports another package that hides ours
from benchmarks.measure.result_file import PROGRAM, command
from benchmarks.studies.grids import STUDIES, Fields, Study
from benchmarks.studies.study_writer import StudyError
from common.files import check_writable, reason
from common.given_path import GivenPath
from models.training.recipe import DEVICES

if TYPE_CHECKING:
    from benchmarks.studies.study_runs import Run
    from models.data import Dataset
    from models.training.recipe import Epoch

# Options that a result's command leaves out: they are facts of a machine, not of a study.
MACHINE_OPTIONS = {"teacher_cache", "data_dir", "params", "device", "track"}
BEST = ".best.json"  # ends the names of files with the best parameters of a search

PATH = GivenPath(path_type=Path)
output_option = click.option("--output", type=PATH, required=True, help="A folder of its own.")
data_dir_option = click.option("--data-dir", type=PATH, help="Folder with the images, else $MNIST_DIR.")


def _list(context: click.Context, parameter: click.Parameter, list_studies: bool) -> None:
    """Prints the studies and exits if the option is given."""
    if not list_studies or context.resilient_parsing:
        return
    click.echo(f"{'study':16}{'runs':>5}{'epochs':>8}{'hours':>7}  question")
    for name, grid in STUDIES.items():
        runs = math.prod(map(len, grid.axes.values())) or "-"
        click.echo(f"{name:16}{runs:>5}{grid.epochs:8}{grid.hours:7.1f}  {grid.question}")
    click.echo(f"{'layout':16}{'-':>5}{'-':>8}{0.1:7.1f}  {layout.help}")
    click.echo("Hours of all images with one seed on one thread. --seeds 3 takes three times as long,")
    click.echo("--last-block all up to 2.6 times.")
    context.exit()


@click.group()
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="Runs and hours of each.")
@click.pass_context
def study(context: click.Context) -> None:
    """Carry out a study: a JSON file, a table and pictures. The same command continues a stopped study."""
    context.meta[PROGRAM] = f"vitbn study {context.invoked_subcommand}"


def _add_command(name: str, grid: Study) -> None:
    """Adds the command of a grid, with an option for each axis, to the group `study`."""
    options: list[Callable[..., Any]] = [
        click.option(
            f"--{axis}", type=click.Choice(list(choices)), multiple=True, help=f"Only this {axis}, repeatable."
        )
        for axis, choices in grid.axes.items()
        if choices
    ]
    if name == "optimised":
        help_ = "A file that vitbn tune wrote, or a folder of them."
        options.append(click.option("--params", type=PATH, multiple=True, required=True, help=help_))
    if "teacher" in grid.fixed:
        help_ = "As in train.py: saves the teacher's time."
        options.append(click.option("--teacher-cache", type=GivenPath(path_type=str), metavar="FOLDER", help=help_))
    if len(grid.datasets) > 1:
        datasets = click.Choice(grid.datasets)
        options.append(click.option("--dataset", type=datasets, default=grid.datasets[0], show_default=True))
    rows, train_images_help = click.Choice(["row", "all"]), "Use only the first N training images."
    options += [
        click.option(
            "--seeds", type=click.IntRange(1, 1000), default=1, show_default=True, help="Runs of each network."
        ),
        click.option("--epochs", type=click.IntRange(1), help=f"Epochs.  [default: {grid.epochs}]"),
        click.option("--train-images", type=click.IntRange(2), metavar="N", help=train_images_help),
        click.option("--last-block", type=rows, default="row", show_default=True, help="As in train.py."),
        click.option("--track", is_flag=True, help="Record each run with MLflow, as train.py does."),
        click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True),
        data_dir_option,
        click.option("--quick", is_flag=True, help="A small version, in a few minutes on two cores."),
        output_option,
    ]
    callback: Callable[..., None] = partial(_carry_out, name, grid)
    for option in reversed(options):
        callback = option(callback)
    study.command(name, help=grid.question)(callback)


@vitbn_packages.one_line_errors()
def _carry_out(
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
    params: Sequence[Path] = (),
    **chosen: Sequence[str],
) -> None:
    """`chosen`: option of an axis -> names of choices; empty for all."""
    from benchmarks.studies import study_report, study_runs
    from models.data import load_dataset
    from models.training import tracking
    from models.training.recipe import choose_device

    data, scope = study_runs.images_and_scope(grid, load_dataset(dataset, data_dir), quick, epochs, train_images, seeds)
    options = {"last_block": last_block, "device": choose_device(device), "teacher_cache": teacher_cache}
    if params:
        grid = replace(grid, axes={"network": _axis_of_searches(params, grid, data)})
    planned = study_runs.runs(grid, data, scope, options, chosen)
    click.echo(grid.question)
    if scope["reduced"]:
        click.echo(f"Not the whole study: {scope['reduced']}")
    click.echo(f"epoch  {'run':26}  training s  test s  training loss  accuracy %")
    tracker = partial(tracking.track, report=click.echo) if track else None
    try:
        with study_runs.flushed_denormals():
            trained = study_runs.train_in_turns(
                name, planned, data, grid.test_batch, output / "runs", _print_epoch, tracker
            )
    except KeyboardInterrupt:
        click.echo("Interrupted: finished epochs are kept, the same command goes on")
        raise SystemExit(130) from None
    result = study_runs.result_of(name, grid, scope, command(MACHINE_OPTIONS), trained)
    _print_written(study_report.write(output, result))


def _axis_of_searches(params: Sequence[Path], grid: Study, data: Dataset) -> dict[str, Fields]:
    """The axis with a choice for each file of a search, named by its model. `params`: files, or folders of them.

    Raises StudyError for no files, equal models, and options that no training has.
    """
    files = [file for path in params for file in (sorted(path.glob(f"*{BEST}")) if path.is_dir() else [path])]
    if not files:
        raise StudyError(f"{params[0]}: expected files *{BEST}, as vitbn tune writes, found none")
    axis: dict[str, Fields] = {}
    for file in files:
        fields = _fields(file, grid, data)
        if (name := fields["model"]) in axis:
            raise StudyError(f"{file}: expected another model than in the files before, found {name}")
        axis[name] = fields
    return axis


def _fields(path: Path, grid: Study, data: Dataset) -> Fields:
    """The fields in a file of `vitbn tune`. Raises StudyError for options that no training has."""
    from benchmarks.studies.study_runs import run_at

    try:
        values = {"model": "vitbn", **json.loads(path.read_bytes())}
        if (dataset := values.pop("dataset", data.name)) != data.name:
            raise StudyError(f"expected options for {data.name}, found options for {dataset}")
        if values.get("lr") is None:  # a search always gives --lr; with the default rate this is another study
            raise StudyError("expected lr, found none")
        run_at(replace(grid, axes={}, fixed=values), data, {}, {})
    except (OSError, ValueError, TypeError) as error:
        raise StudyError(
            f"{path}: expected a JSON object of options for models/train.py, found {reason(error)}"
        ) from error
    except StudyError as error:
        raise StudyError(f"{path}: {error}") from error
    return values


def _print_epoch(run: Run, epoch: Epoch) -> None:
    click.echo(
        f"{epoch.epoch:5d}  {run.label:26}  {epoch.training_time_s:10.2f}  {epoch.test_time_s:6.2f}"
        f"  {epoch.training_loss:13.4f}  {100 * (epoch.test_accuracy or 0):10.2f}"
    )


def _print_written(paths: list[Path]) -> None:
    click.echo(f"Wrote {', '.join(path.name for path in paths)} in {paths[0].parent}")


for name, grid in STUDIES.items():
    _add_command(name, grid)


@study.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@data_dir_option
@output_option
@vitbn_packages.one_line_errors()
def layout(device: str, output: Path, data_dir: Path | None) -> None:
    """Times of BatchNorm2d after a transpose, as published, beside those of our layout."""
    from benchmarks.studies import batch_norm_layout_timing
    from models.data import load_dataset

    dataset = load_dataset("mnist", data_dir)
    check_writable(output)
    runs = batch_norm_layout_timing.measure(dataset, device=device)
    _print_written(batch_norm_layout_timing.write(output, runs, command(MACHINE_OPTIONS), device))


@study.command()
@click.option("--results", type=PATH, default=Path("benchmarks/results/studies"), show_default=True)
@click.option("--page", type=PATH, default=Path("docs/claims.md"), show_default=True)
@vitbn_packages.one_line_errors()
def claims(results: Path, page: Path) -> None:
    """Write the tables and pictures of the page on the published claims anew, from the results of the studies."""
    from benchmarks.studies.claims_page import write

    paths = write(page, results)
    click.echo(f"Wrote {', '.join(map(str, paths))}")


if __name__ == "__main__":
    study()
