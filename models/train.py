"""Command line: dataset -> checkpoint. `models/training` has the options and the loop."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

import vitbn_packages  # first: reports another `models` that hides ours
from common.files import check_writable, ended_by_signal, naming
from common.finite_range import FiniteRange
from common.given_path import GivenPath
from common.plurals import counted
from models.catalog import NameChoice
from models.checkpoints import metrics
from models.data import DATA_DIR_HELP, DATASETS, DataError, Dataset, load_dataset
from models.evaluation.report import wilson
from models.networks.config import MODEL_NAMES, ModelConfig, ModelName, Pool, PositionEncoding
from models.training.command_options import CHECKPOINTS, check_model, check_output, read_params, training_options
from models.training.folder_defaults import PLAIN, USUAL, usual, ways
from models.training.recipe import Epoch, TrainingOptions, choose_device, configure

LARGE_CLASS = 0.5  # of the test part
LISTED = 12  # classes whose pictures are counted on the screen
ROWS = 20  # of the table of a long training
DATASET_HELP = f"{', '.join(DATASETS)}, or a folder with a sub-folder of pictures for each class."


def _now_a_command(ctx: click.Context, param: click.Parameter, folder: str | None) -> None:
    if folder is not None:
        raise click.UsageError(f"--adapt-to: expected the command vitbn adapt CHECKPOINT {shlex.quote(folder)}")


def _check_report(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    if path and (path.suffix not in (".html", ".htm") or path.is_dir()):
        raise click.BadParameter(f"expected a file such as report.html, found {path}")
    return path


@click.command()
@click.option(
    "--params",
    type=GivenPath(path_type=Path),
    callback=read_params,
    is_eager=True,
    expose_value=False,
    help="JSON with values for the options below, such as vitbn tune writes.",
)
@click.option(
    "--model",
    type=NameChoice(MODEL_NAMES),
    default="vitbn",
    show_default="vitbn; of a folder's few pictures cnn",
    callback=check_model,
)
@click.option("--dataset", type=GivenPath(path_type=str), default="digits", show_default=True, help=DATASET_HELP)
@click.option("--data-dir", type=GivenPath(path_type=Path), help=DATA_DIR_HELP)
@click.option(
    "--image-size",
    type=(click.IntRange(1), click.IntRange(1)),
    help="Height and width of a folder's images.  [default: 28 28, or long as most pictures]",
)
@click.option("--depth", type=click.IntRange(1), default=6, show_default=True, help="Blocks of a transformer.")
@click.option(
    "--dim", type=click.IntRange(1), default=64, show_default=True, help="Features of a token; channels of the CNN."
)
@click.option("--heads", type=click.IntRange(1), default=8, show_default=True, help="Heads of a block.")
@click.option("--dim-head", type=click.IntRange(1), default=64, show_default=True, help="Features of a head.")
@click.option("--mlp-dim", type=click.IntRange(1), default=128, show_default=True, help="Hidden features of the FFN.")
@click.option(
    "--class-attention", type=(int, int), help="Heads of the last block and their features; the CLS token joins there."
)
@click.option("--patch-size", type=(int, int), help="Height and width in pixels; default: the dataset's.")
@click.option("--pool", type=click.Choice(get_args(Pool)), default="cls", show_default=True)
@click.option("--pos-emb", type=click.Choice(get_args(PositionEncoding)), default="learn", show_default=True)
@click.option("--dropout", type=FiniteRange(0, 1, max_open=True), default=0.0, show_default=True)
@click.option("--emb-dropout", type=FiniteRange(0, 1, max_open=True), default=0.0, show_default=True)
@click.option("--qkv-bias", is_flag=True, help="Queries, keys and values with a bias.")
@click.option("--standardise", is_flag=True, help="Subtract each picture's mean and divide by its spread.")
@training_options
@click.option(
    "--output",
    type=GivenPath(path_type=Path),
    callback=check_output,
    help="Default: checkpoints/<model>-<dataset>.safetensors; of a folder without --model <folder>.safetensors there.",
)
@click.option("--resume", is_flag=True, help="Continue the run at --output.")
@click.option("--overwrite", is_flag=True, help="Replace the run at --output.")
@click.option(
    "--report",
    type=GivenPath(path_type=Path),
    callback=_check_report,
    metavar="FILE",
    help="Write an HTML page: curves, confusion matrix, most mistaken pictures. With --resume of a finished run, too.",
)
@click.option("--track", is_flag=True, help="Record the run with MLflow: $MLFLOW_TRACKING_URI, else ./mlruns.")
@click.option("--adapt-to", hidden=True, expose_value=False, callback=_now_a_command)
@vitbn_packages.one_line_errors()
def train(
    model: ModelName,
    dataset: str,
    data_dir: Path | None,
    image_size: tuple[int, int] | None,
    output: Path | None,
    resume: bool,
    overwrite: bool,
    report: Path | None,
    track: bool,
    **others: Any,
) -> None:
    """Train a model and write its checkpoint (Ctrl-C keeps the last finished epoch)."""
    if image_size and dataset in DATASETS:
        raise DataError(f"--image-size: expected a folder as --dataset, found {dataset}")
    if dataset in DATASETS and Path(dataset).is_dir():
        click.echo(f"{dataset}: the dataset of this name, not the folder; for the folder give ./{dataset}")
    output = output or _default_output(dataset)
    for path in filter(None, (output, output.with_suffix(".json"), report)):
        _check_new(path, resume, overwrite)
    if (series := output.with_suffix(".json")).exists() and "epochs" not in _earlier(output):
        raise click.ClickException(f"{series}: expected the record of a training, found another file")
    record = _earlier(output).get("pictures") if resume else None
    data = load_dataset(dataset, data_dir, image_size=image_size, held_out=_given("hold_out"), record=record)
    options_given = {name: value for name in ("model", *others) if (value := _given(name)) is not None}
    chosen, reason = usual(data, options_given)
    held_out = others["hold_out"] if data.pictures is None else len(data.held[1]) if data.held else 0

    def configured(values: Mapping[str, Any]) -> tuple[ModelConfig, TrainingOptions]:
        config, options = configure(data, {"model": model, **others, **values})
        return config, replace(options, device=choose_device(options.device), hold_out=held_out)

    config, options = configured(chosen)  # imports torch, which takes seconds: after the checks above
    for path in filter(None, (output, report)):
        with naming(path):
            check_writable(path.parent)
    if len(tried := ways(data, options_given, chosen)) > 1:
        way, told = _best_way(data, tried, configured, _earlier(output) if resume else {})
        chosen, reason = tried[way], f"{reason}; {told}" if way == USUAL else told
        config, options = configured(chosen)
    _say_choices(data, chosen, reason)
    _check_new(output, resume, overwrite)  # again: another training may have begun during the trial
    last = _run(config, data, options, output, resume, track)
    if report:
        _write_report(report, output, data, options.device)
    if last is None and not report:
        raise click.ClickException(f"{output}: expected fewer than {options.epochs} finished epochs, found them all")


def _given(name: str) -> Any:
    """An option's value, or None if its default stands."""
    context = click.get_current_context()
    return None if context.get_parameter_source(name) is ParameterSource.DEFAULT else context.params[name]


def _default_output(dataset: str) -> Path:
    """The default of --output. It names a folder's model only if the user did: else the pictures choose it later."""
    model = click.get_current_context().params["model"] if dataset in DATASETS else _given("model")
    parts = [*([model] if model else []), Path(dataset).resolve().name]
    return CHECKPOINTS / f"{'-'.join(parts)}.safetensors"


def _check_new(output: Path, resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise click.UsageError("expected --resume or --overwrite, found both")
    if output.exists() and not (resume or overwrite):
        raise click.ClickException(
            f"{output}: expected no such file yet, found one; --resume goes on, --overwrite replaces"
        )


def _earlier(output: Path) -> metrics.Metrics:
    """The metrics beside an earlier training; empty without their file: `loop.train` says what is wrong then."""
    try:
        return metrics.from_json(output.with_suffix(".json").read_text())
    except (OSError, ValueError):
        return {}


def _best_way(
    data: Dataset,
    tried: Mapping[str, Mapping[str, Any]],
    configured: Callable[[Mapping[str, Any]], tuple[ModelConfig, TrainingOptions]],
    earlier: metrics.Metrics,
) -> tuple[str, str]:
    """The best of the ways and the reason. A resumed training keeps its way."""
    if before := earlier.get("options"):
        before, names = before | earlier.get("config", {}), {"model", *PLAIN}
        same = (way for way, values in tried.items() if all(before.get(k) == values[k] for k in names & {*values}))
        return next(same, USUAL), "the training so far was of this kind"
    from models.training import recipe_trial

    click.echo(f"Trying on a part of the pictures which training suits them: {', '.join(tried)}")
    click.echo("A way is left once it can no longer be the best")
    configurations = {way: configured(values) for way, values in tried.items()}
    images = recipe_trial.images_seen(data, list(configurations.values()))
    with _progress(images, 0) as show_bar:
        on_batch = show_bar if sys.stderr.isatty() else _said_in_quarters(images)
        return recipe_trial.best_way(data, configurations, on_batch)


def _said_in_quarters(images: int) -> Callable[[int, float], None]:
    """Prints a line at each quarter of the trial, where no terminal shows a bar."""
    seen = 0

    def on_batch(count: int, loss: float) -> None:
        nonlocal seen
        quarters, seen = 4 * seen // images, seen + count
        if 4 * seen // images > quarters:
            click.echo(f"The trial: {100 * seen / images:.0f} % of at most {images} images seen", err=True)

    return on_batch


def _say_choices(data: Dataset, chosen: Mapping[str, Any], reason: str) -> None:
    for note in data.notes:
        click.echo(note)
    if chosen:
        values = ((name, value if isinstance(value, tuple) else (value,)) for name, value in chosen.items())
        options = " ".join(f"--{name.replace('_', '-')} {' '.join(map(str, each))}" for name, each in values)
        click.echo(f"Chosen for {len(data.train_labels)} pictures of {data.image_size} to train on: {options}")
        click.echo(f"Why: {reason}")


def _run(
    config: ModelConfig, data: Dataset, options: TrainingOptions, output: Path, resume: bool, track: bool
) -> Epoch | None:
    from models.data import hold_out
    from models.evaluation.accuracy_and_calibration import FEWEST, too_few
    from models.training import loop

    part = hold_out(data, options.hold_out) if options.hold_out else data  # refuses before anything is printed
    images = len(part.train_labels) + options.drawn + options.outliers
    finished = _earlier(output).get("epochs", 0) if resume else 0
    with ended_by_signal(), _progress(options.epochs * images, finished * images) as on_batch:
        epochs = loop.train(config, data, options, output, resume, on_batch)
        if track:
            from models.training import tracking

            epochs = tracking.track(epochs, output, resume, _print_above_the_bar)
        what = f"{config.model}, depth {config.depth}," if config.is_transformer else config.model
        click.echo(f"{what} on {images} images of {data.name}, {options.device}, seed {options.seed}")
        if data.pictures:
            held = ", hold out" if data.held else ""
            click.echo(f"Pictures to train{held} and to test on: {_class_counts(data)}")
        last = _print_epochs(epochs, f"{'held-out' if options.hold_out else 'test'} accuracy %", options.epochs)
    if last:
        if data.pictures:
            _say_accuracy(output, data)
        if 0 < options.hold_out < FEWEST:
            click.echo(f"Not calibrated: {too_few(options.hold_out)}")
        click.echo(f"Wrote {output} and {output.with_suffix('.json')}")
        click.echo(f"Export it: vitbn export --checkpoint {shlex.quote(str(output))}")
    return last


def _write_report(path: Path, checkpoint: Path, data: Dataset, device: str) -> None:
    from common.files import write_atomically
    from models.evaluation.report import measure
    from models.evaluation.report_page import page

    write_atomically(path, page(measure(checkpoint, data, device)).encode(errors="backslashreplace"))
    click.echo(f"Wrote {path}: open it in a browser")


def _class_counts(data: Dataset) -> str:
    """Of each class, or of the LISTED smallest of more classes, its pictures in each part."""
    parts = [data.train_labels, *([data.held[1]] if data.held else []), data.test_labels]
    counts = [[int((labels == label).sum()) for labels in parts] for label in range(len(data.labels))]
    classes, of_all = [*zip(data.labels, counts, strict=True)], ""
    if len(classes) > LISTED:
        of_all = f"of {len(classes)} classes the smallest: "
        classes = sorted(classes, key=lambda named: sum(named[1]))[:LISTED]
    return of_all + "; ".join(f"{name}: {', '.join(map(str, own[:-1]))} and {own[-1]}" for name, own in classes)


def _say_accuracy(output: Path, data: Dataset) -> None:
    """Prints the accuracy on the test part with its interval: few pictures say little, nor does one large class."""
    about = _earlier(output)
    if (share := about.get("test_accuracy")) is None:
        return
    count, kept = about["test_images"], f"epoch {about['kept_epoch']} of {about['epochs']} is kept"
    low, high = (f"{100 * bound:.0f}" for bound in wilson(share, count))
    largest, most = Counter(data.test_labels.tolist()).most_common(1)[0]
    always = f"; always {data.labels[largest]}: {100 * most / count:.0f} %" if most > LARGE_CLASS * count else ""
    accuracy = f"{100 * share:.0f} %, {low} to {high} (95 % interval)"
    click.echo(f"Test part: {counted(count, 'picture')}: {accuracy}{always}; {kept}")


@contextmanager
def _progress(images: int, finished: int) -> Iterator[Callable[[int, float], None]]:
    from tqdm import tqdm

    with tqdm(total=images, initial=finished, unit=" images", unit_scale=True, leave=False, disable=None) as bar:

        def on_batch(count: int, loss: float) -> None:
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            bar.update(count)

        yield on_batch


def _print_epochs(epochs: Generator[Epoch, None, None], measured: str, count: int) -> Epoch | None:
    """Prints the first, the last and about ROWS others: few pictures are trained on for a thousand epochs."""
    last, every = None, max(1, count // ROWS)
    _print_above_the_bar(f"epoch  training s  test s  training loss  {measured}")
    try:
        with closing(epochs):  # writes the last epoch
            for last in epochs:
                if last.epoch not in (1, count) and last.epoch % every:
                    continue
                _print_above_the_bar(
                    f"{last.epoch:5d}  {last.training_time_s:10.2f}  {last.test_time_s:6.2f}"
                    f"  {last.training_loss:13.4f}  {_percent(last.test_accuracy):>{len(measured)}}"
                )
    except (KeyboardInterrupt, SystemExit) as stop:
        kept = f"kept epoch {last.epoch}; --resume goes on" if last else "no epoch was finished"
        _print_above_the_bar(f"Interrupted: {kept}")
        raise SystemExit(getattr(stop, "code", 130)) from None
    return last


def _percent(share: float | None) -> str:
    return "at the end" if share is None else f"{100 * share:.2f}"


def _print_above_the_bar(line: str) -> None:
    from tqdm import tqdm

    with tqdm.external_write_mode():
        click.echo(line)  # flushes


if __name__ == "__main__":
    train(prog_name="vitbn train")
