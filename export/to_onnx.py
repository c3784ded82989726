"""Command line: checkpoint -> compared ONNX file -> model repository."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from models.catalog import SHIPPED, NameChoice, relative, shipped
from vitbn_packages import in_words

if TYPE_CHECKING:
    from export.engines.choosing import Choice
    from export.graph import Exported
    from export.pipeline import ExportOptions


DEFAULT_REPOSITORY = Path("triton_repo")
repository_option = click.option(
    "--repository", type=click.Path(path_type=Path), help=f"Model repository.  [default: {DEFAULT_REPOSITORY}]"
)


@click.command()
@click.option("--model", type=NameChoice(SHIPPED), help="A shipped checkpoint.  [default: vitbn]")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Your .safetensors, or a published .pth.")
@click.option("--depth", type=click.IntRange(1), help="Read only the first N blocks of the checkpoint.")
@click.option(
    "--rewrites",
    type=click.Choice(["none", "bn", "all"]),
    help="bn folds every BatchNorm; all: every exact rewrite that applies.  [default: bn; with --backend auto: all]",
)
@click.option("--fuse-bn", is_flag=True, help="As --rewrites bn.")
@click.option("--fuse-attention", is_flag=True, help="Attention in the form that GPU kernels fuse.")
@click.option("--precision", type=click.Choice(["fp32", "tf32", "fp16", "int8"]), default="fp32", show_default=True)
@click.option(
    "--max-accuracy-drop",
    type=click.FloatRange(0, 100),
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
    "--for", "goal", type=click.Choice(["latency", "throughput"]), help="Goal of auto.  [default: throughput]"
)
@click.option("--instances", type=click.IntRange(1, 64), help="Copies of the model in the server.")
@click.option("--threads", type=click.IntRange(0, 256), help="Per copy on a CPU; 0: one per core.")
@click.option("--output", type=click.Path(path_type=Path), help="Write only this ONNX file, its manifest and sample.")
def export(model: str | None, checkpoint: Path | None, fuse_bn: bool, **options: Any) -> None:
    """Rewrite a checkpoint exactly, compare it on real images and publish it as the next version of its model."""
    if model and checkpoint:
        raise click.UsageError("expected --model or --checkpoint, found both")
    _check_destination(options)
    options["rewrites"] = _rewrites(options["rewrites"], fuse_bn, options["backend"])
    if options["precision"] == "tf32" and options["backend"] in ("openvino", "auto"):
        raise click.UsageError("expected --backend onnxruntime for tf32, which only NVIDIA GPUs have")
    options["goal"] = _goal(options)
    _check_drop(options)
    from export.errors import ExportError
    from export.pipeline import ExportOptions
    from models.checkpoint import CheckpointError
    from models.data import DataError

    try:
        _print(_export(checkpoint or shipped(model or "vitbn"), ExportOptions(model=model, **options)))
    except (CheckpointError, DataError, ExportError, OSError) as error:
        raise click.ClickException(in_words(error)) from error


def _check_destination(options: dict[str, Any]) -> None:
    """Sets the default repository if no other place is given."""
    sharing = options["instances"] or options["threads"] is not None
    check_output_alone(options["output"], options["repository"] or options["name"] or options["backend"] or sharing)
    if not options["output"]:
        options["repository"] = options["repository"] or DEFAULT_REPOSITORY


def check_output_alone(output: Path | None, others: object) -> None:
    if output and others:
        raise click.UsageError(
            "expected --output alone, found --name, --repository, --backend, --instances or --threads"
        )


def _rewrites(asked: str | None, fuse_bn: bool, backend: str | None) -> str:
    if fuse_bn and asked not in (None, "bn"):
        raise click.UsageError(f"expected --fuse-bn or --rewrites {asked}, found both")
    return "bn" if fuse_bn else asked or ("all" if backend == "auto" else "bn")


def _goal(options: dict[str, Any]) -> str:
    auto = options["backend"] == "auto"
    if options["goal"] and not auto:
        raise click.UsageError("expected --backend auto with --for, found --for alone")
    if auto and (options["precision"] != "fp32" or options["instances"] or options["threads"] is not None):
        raise click.UsageError("expected --backend auto alone, found --precision, --instances or --threads")
    return options["goal"] or "throughput"


def _check_drop(options: dict[str, Any]) -> None:
    source = click.get_current_context().get_parameter_source("max_accuracy_drop")
    lowered = options["precision"] in ("fp16", "int8") or options["backend"] in ("openvino", "auto")
    if source is not ParameterSource.DEFAULT and not lowered:
        raise click.UsageError(f"expected no --max-accuracy-drop: {options['precision']} drops nothing")
    if math.isnan(options["max_accuracy_drop"]):  # is in every range
        raise click.UsageError("--max-accuracy-drop: expected a number, found nan")


def _export(path: Path, options: ExportOptions) -> Exported:
    from export.pipeline import export_checkpoint
    from models.checkpoint import UntrainedBlockWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UntrainedBlockWarning)
        exported = export_checkpoint(path, options)
    for warning in caught:
        click.echo(f"Warning: {warning.message}", err=True)
    return exported


def _print(exported: Exported) -> None:
    config, about = exported.config, exported.artifact.about
    what = f"{config.model}, depth {config.depth}" if config.is_transformer else config.model
    click.echo(f"Read {relative(exported.checkpoint.path)}: {what}")
    if exported.note:
        click.echo(f"Note: {exported.note}", err=True)
    _print_steps(exported)
    for comparison in exported.comparisons:
        click.echo(f"Proved {comparison} of {about['proved_on']}")
    if exported.converted:
        click.echo(f"Converted to {about['precision']}: {exported.converted}")
    if exported.in_engine:
        click.echo(f"Measured {exported.in_engine}")
    if exported.choice:
        _print_choice(exported.choice)
    click.echo(f"Wrote {exported.path} ({len(exported.onnx) / 1e6:.1f} MB)")


def _print_choice(choice: Choice) -> None:
    click.echo("  engine       precision  instances  threads  test accuracy %  images/s  ms a call")
    for row in choice.rows:
        candidate = row.candidate
        head = f"  {candidate.engine:11}  {candidate.precision:9}"
        if row.left_out:
            click.echo(f"{head}  left out: {row.left_out}")
            continue
        sharing = f"{candidate.instances:9}  {candidate.threads or 'all':>7}"
        figures = f"{100 * (row.accuracy or 0):15.2f}  {row.images_per_s:8,.0f}  {row.call_ms:9.3f}"
        click.echo(f"{head}  {sharing}  {figures}")
    click.echo(f"Chose for {choice.goal}: {choice.best.candidate}")
    if choice.reason:
        click.echo(f"  {choice.reason}")


def _print_steps(exported: Exported) -> None:
    click.echo(f"  {'as trained':22}{exported.macs:>12,} multiply-accumulates an image")
    for step in exported.steps:
        if step.left_out:
            click.echo(f"  {step.rewrite:22}{'left out':>12}  {step.left_out}")
        else:
            where = f"{len(step.layers)} layers, {step.layers[0]} …" if len(step.layers) > 1 else "".join(step.layers)
            click.echo(f"  {step.rewrite:22}{step.macs:>12,}  {where}")


if __name__ == "__main__":
    export()
