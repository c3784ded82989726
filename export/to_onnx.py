"""Command line of the exporter: checkpoint -> proven ONNX -> model repository. `python export/to_onnx.py --help`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from models.catalog import SHIPPED, shipped

if TYPE_CHECKING:
    from export.rewrites.pipeline import Step


@click.command()
@click.option("--model", type=click.Choice(SHIPPED), help="A shipped checkpoint.  [default: vitbn]")
@click.option("--checkpoint", type=click.Path(path_type=Path), help="Your .safetensors, or a published .pth.")
@click.option("--depth", type=click.IntRange(1), help="Read only the first N blocks of the checkpoint.")
@click.option("--fuse-bn/--no-fuse-bn", default=True, show_default=True, help="Fold every BatchNorm away.")
@click.option("--absorb-attention", is_flag=True, help="Let the tokens be keys and values themselves.")
@click.option("--cls-only", is_flag=True, help="Of the last block compute only the row that the head reads.")
@click.option("--optimize", is_flag=True, help="All rewrites that apply to the model and save work.")
@click.option("--precision", type=click.Choice(["fp32", "fp16", "int8"]), default="fp32", show_default=True)
@click.option("--max-accuracy-drop", type=click.FloatRange(0), default=0.1, show_default=True, help="In points.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="MNIST, to measure fp16 and int8 on.")
@click.option("--opset", type=click.IntRange(18, 21), default=20, show_default=True, help="Of the ONNX file.")
@click.option("--repository", type=click.Path(path_type=Path), default=Path("triton_repo"), show_default=True)
@click.option("--name", help="To serve the model under.  [default: that of --model]")
@click.option("--instances", type=click.IntRange(1, 64), help="Copies of the model in the server.")
@click.option("--threads", type=click.IntRange(0, 256), help="Of each copy on a CPU; 0: one a core.")
@click.option("--output", type=click.Path(path_type=Path), help="Write only this ONNX file and its manifest.")
def export(
    model: str | None,
    checkpoint: Path | None,
    depth: int | None,
    fuse_bn: bool,
    absorb_attention: bool,
    cls_only: bool,
    optimize: bool,
    precision: Literal["fp32", "fp16", "int8"],
    max_accuracy_drop: float,
    data_dir: Path | None,
    opset: int,
    repository: Path,
    name: str | None,
    instances: int | None,
    threads: int | None,
    output: Path | None,
) -> None:
    """Rewrite a checkpoint exactly, prove it on real digits and publish it as the next version of its model."""
    from export.artifact import PublishError
    from export.equivalence import EquivalenceError
    from export.graph import export as export_onnx
    from export.precision import AccuracyError, Lowering
    from export.publish import publish
    from export.rewrites import absorb, fold, pipeline, prune
    from export.rewrites.errors import RewriteError
    from export.triton_config import Serving
    from models.checkpoint import CheckpointError, UntrainedBlockWarning, load
    from models.data import DataError, load_dataset
    from models.files import write_atomically
    from models.macs import macs_per_image

    if model and checkpoint:
        raise click.UsageError("expected --model or --checkpoint, found both")
    try:
        path = checkpoint or shipped(model or "vitbn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UntrainedBlockWarning)
            loaded = load(path, depth)
        for warning in caught:
            click.echo(f"Warning: {warning.message}", err=True)
        config = loaded.config
        what = f"{config.model}, depth {config.depth}" if config.is_transformer else config.model
        click.echo(f"Read {path}: {what}")
        chosen = {fold.fold_batchnorm: fuse_bn, absorb.absorb_attention: absorb_attention, prune.cls_only: cls_only}
        required = [rewrite for rewrite, wanted in chosen.items() if wanted]
        rewrites = pipeline.ALL if optimize else [*required, *(pipeline.FUSE if fuse_bn else ())]
        lowering = None
        if precision != "fp32":
            dataset = load_dataset(loaded.metrics.get("dataset", "mnist"), data_dir)
            lowering = Lowering(precision, dataset, max_accuracy_drop)
        exported = export_onnx(loaded, rewrites, required, opset, lowering)
        _print_steps(macs_per_image(loaded.model), exported.steps)
        for proof in exported.proofs:
            click.echo(f"Proved {proof}")
        if exported.converted:
            click.echo(f"Converted to {precision}: {exported.converted}")
        if output:
            write_atomically(output, exported.onnx)
            write_atomically(output.with_suffix(".json"), exported.artifact.manifest_json())
        else:
            serving = Serving(instances=instances, threads=threads)
            output = publish(repository, name or model or config.model, exported.artifact, serving)
    except (CheckpointError, DataError, RewriteError, EquivalenceError, AccuracyError, PublishError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Wrote {output} ({len(exported.onnx) / 1e6:.1f} MB)")


def _print_steps(macs: int, steps: Sequence[Step]) -> None:
    """A row a rewrite: what it changed and the multiplications left, or why it was left out."""
    click.echo(f"  {'as trained':22}{macs:>12,} multiply-accumulates an image")
    for step in steps:
        if step.left_out:
            click.echo(f"  {step.rewrite:22}{'left out':>12}  {step.left_out}")
        else:
            where = f"{len(step.layers)} layers, {step.layers[0]} …" if len(step.layers) > 1 else "".join(step.layers)
            click.echo(f"  {step.rewrite:22}{step.macs:>12,}  {where}")


if __name__ == "__main__":
    export()
