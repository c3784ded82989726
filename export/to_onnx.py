"""Command line: exports a checkpoint to a compared ONNX file, and publishes it in a model repository."""

from __future__ import annotations

import shlex
import socket
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from common.finite_range import FiniteRange
from common.given_path import GivenPath
from export.precision_table import IN_ONNX_RUNTIME, Precision, file_precision
from models.catalog import SHIPPED, NameChoice, relative, shipped
from vitbn_packages import one_line_errors

if TYPE_CHECKING:
    from export.checkpoint_to_version import Ready
    from export.engines.choose_engine import Choice

DEFAULT_REPOSITORY = Path("triton_repo")
DEFAULT_SERVER = ("127.0.0.1", 8000)  # the default of `vitbn repository`, too
repository_option = click.option(
    "--repository", type=GivenPath(path_type=Path), help=f"Model repository.  [default: {DEFAULT_REPOSITORY}]"
)


@click.command()
@click.option("--model", type=NameChoice(SHIPPED), help="A shipped checkpoint.  [default: vitbn]")
@click.option("--checkpoint", type=GivenPath(path_type=Path), help="Your .safetensors, or a published .pth.")
@click.option("--depth", type=click.IntRange(1), help="Read only the first N blocks of the checkpoint.")
@click.option(
    "--rewrites",
    type=click.Choice(["none", "bn", "all"]),
    help="bn folds every BatchNorm; all: every exact rewrite that applies.  [default: bn; with --backend auto: all]",
)
@click.option("--fuse-bn", is_flag=True, help="As --rewrites bn.")
@click.option("--fuse-attention", is_flag=True, help="Attention in the form that GPU kernels fuse.")
@click.option("--precision", type=click.Choice(IN_ONNX_RUNTIME), default="fp32", show_default=True)
@click.option(
    "--max-accuracy-drop",
    type=FiniteRange(0, 100),
    default=0.1,
    show_default=True,
    help="In percentage points, of fp16, int8, OpenVINO and auto.",
)
@click.option(
    "--data-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The model's dataset, for proof and measurement.",
)
@click.option("--opset", type=click.IntRange(18, 21), default=20, show_default=True, help="ONNX operator set.")
@repository_option
@click.option("--name", help="Model name.  [default: the network's]")
@click.option("--backend", type=click.Choice(["onnxruntime", "openvino", "auto"]), help="[default: onnxruntime]")
@click.option(
    "--for",
    "goal",
    type=click.Choice(["latency", "throughput"]),
    help="Goal of auto; latency: a session of its own for single images.  [default: latency; auto: throughput]",
)
@click.option("--instances", type=click.IntRange(1, 64), help="Copies of the model in the server.")
@click.option("--threads", type=click.IntRange(0, 256), help="Per copy on a CPU; 0: one per core.")
@click.option("--output", type=GivenPath(path_type=Path), help="Write only this ONNX file, its manifest and sample.")
@one_line_errors()
def export(
    model: str | None,
    checkpoint: Path | None,
    depth: int | None,
    data_dir: Path | None,
    max_accuracy_drop: float,
    name: str | None,
    repository: Path | None,
    output: Path | None,
    **options: Any,
) -> None:
    """Rewrite a checkpoint exactly, compare it on real images and publish it as the next version of its model."""
    if model and checkpoint:
        raise click.UsageError("expected --model or --checkpoint, found both")
    _check_options(name, repository, output, options)
    from export.checkpoint_to_version import check_destination, served_name, write

    path = checkpoint or shipped(model or "vitbn")
    check_destination(name, output, repository or DEFAULT_REPOSITORY, path)
    ready = _ready(path, depth, data_dir, max_accuracy_drop, options)
    name = name or served_name(model or ready.exported.config.model, ready.serving.engine)
    written = write(ready.artifact, output, repository or DEFAULT_REPOSITORY, name, ready.serving)
    _print(ready, written)


def _check_options(name: str | None, repository: Path | None, output: Path | None, options: dict[str, Any]) -> None:
    backend, precision, rewrites = options["backend"], options["precision"], options["rewrites"]
    sharing = options["instances"] or options["threads"] is not None
    check_output_alone(output, repository or name or backend or options["goal"] or sharing)
    if options["fuse_bn"] and rewrites not in (None, "bn"):
        raise click.UsageError(f"expected --fuse-bn or --rewrites {rewrites}, found both")
    if precision == "tf32" and backend in ("openvino", "auto"):
        raise click.UsageError("expected --backend onnxruntime for tf32, which only NVIDIA GPUs have")
    if options["goal"] and backend == "openvino":
        raise click.UsageError("expected --backend onnxruntime or auto with --for, found openvino")
    if backend == "auto" and (precision != "fp32" or sharing):
        raise click.UsageError("expected --backend auto alone, found --precision, --instances or --threads")
    _check_drop(precision, backend)


def _check_drop(precision: Precision, backend: str | None) -> None:
    """Raises UsageError for --max-accuracy-drop if no accuracy is measured."""
    context = click.get_current_context()
    measured = file_precision(precision, "onnxruntime") != "fp32" or backend in ("openvino", "auto")
    if context.get_parameter_source("max_accuracy_drop") is not ParameterSource.DEFAULT and not measured:
        raise click.UsageError(f"expected no --max-accuracy-drop: {precision} drops nothing")


def check_output_alone(output: Path | None, others: object) -> None:
    """Raises UsageError if --output and an option of a repository are given. `others`: the values of those options."""
    if output and others:
        raise click.UsageError(
            "expected --output alone, found --name, --repository, --backend, --for, --instances or --threads"
        )


def _ready(path: Path, depth: int | None, data_dir: Path | None, drop: float, options: dict[str, Any]) -> Ready:
    """Exports the checkpoint at `path`; warnings about untrained blocks become lines."""
    from export.checkpoint_to_onnx import Form
    from export.checkpoint_to_version import Target, export_for
    from export.publishing.build_config_pbtxt import Serving
    from models.checkpoints.checkpoint import UntrainedBlockWarning

    auto = options["backend"] == "auto"
    rewrites: Any = options["rewrites"] or ("all" if auto and not options["fuse_bn"] else "bn")
    form = Form(rewrites, options["fuse_attention"], options["opset"])
    goal = options["goal"]
    serving = Serving(None if auto else options["backend"], options["instances"], options["threads"], goal=goal)
    target: Any = goal or "throughput" if auto else Target(options["precision"], serving)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UntrainedBlockWarning)
        ready = export_for(target, path, form, drop, depth, data_dir)
    for warning in caught:
        click.echo(f"Warning: {warning.message}", err=True)
    return ready


def _print(ready: Ready, written: Path) -> None:
    from export.pass_report import step_lines

    exported, config, precision = ready.exported, ready.exported.config, ready.artifact.origin.precision
    network = f"{config.model}, depth {config.depth}" if config.is_transformer else config.model
    click.echo(f"Read {relative(exported.checkpoint.path)}: {network}")
    if exported.checkpoint.note:
        click.echo(f"Note: taken from the file: {exported.checkpoint.note}", err=True)
    if exported.images.note:
        click.echo(f"Note: {exported.images.note}", err=True)
    for line in step_lines("as trained", exported.work, " an image", exported.steps):
        click.echo(line)
    for comparison in exported.comparisons:
        click.echo(f"Proved {comparison} of {exported.images.of}")
    for measured in ready.accuracies:
        click.echo(f"{'Measured' if measured.engine else f'Converted to {precision}:'} {measured}")
    if ready.choice:
        _print_choice(ready.choice)
    click.echo(f"Wrote {written} ({len(ready.artifact.data) / 1e6:.1f} MB)")
    if written.is_dir() and _a_server_runs():
        click.echo(f"Let the running server serve it: {_promotion(written)}")


def _a_server_runs() -> bool:
    try:
        socket.create_connection(DEFAULT_SERVER, timeout=0.5).close()
    except OSError:
        return False
    return True


def _promotion(version: Path) -> str:
    """The command that makes a running server load the version. `version`: its folder."""
    words = ["vitbn", "repository", "promote", version.parent.name, version.name]
    if (repository := version.parent.parent) != DEFAULT_REPOSITORY:
        words += ["--repository", str(repository)]
    return shlex.join(words)


def _print_choice(choice: Choice) -> None:
    click.echo("  engine       precision  instances  threads  test accuracy %  images/s  ms a call")
    for row in choice.rows:
        setting = row.setting
        head = f"  {setting.engine:11}  {setting.precision:9}"
        if row.left_out:
            click.echo(f"{head}  left out: {row.left_out}")
            continue
        sharing = f"{setting.instances:9}  {setting.threads or 'all':>7}"
        figures = f"{100 * (row.accuracy or 0):15.2f}  {row.images_per_s:8,.0f}  {row.call_ms:9.3f}"
        click.echo(f"{head}  {sharing}  {figures}")
    click.echo(f"Chose for {choice.goal}: {choice.best.setting}")
    if choice.reason:
        click.echo(f"  {choice.reason}")


if __name__ == "__main__":
    export()
