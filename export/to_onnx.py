"""Command line of the exporter: checkpoint -> proven ONNX -> model repository. `python export/to_onnx.py --help`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from models.catalog import SHIPPED, shipped

if TYPE_CHECKING:
    from export.equivalence import Sample
    from export.rewrites.pipeline import Step
    from models.checkpoint import Checkpoint


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
@click.option("--data-dir", type=click.Path(path_type=Path), help="The model's dataset, to prove and measure on.")
@click.option("--opset", type=click.IntRange(18, 21), default=20, show_default=True, help="Of the ONNX file.")
@click.option("--repository", type=click.Path(path_type=Path), default=Path("triton_repo"), show_default=True)
@click.option("--name", help="To serve under.  [default: that of --model]")
@click.option("--backend", type=click.Choice(["onnxruntime", "openvino"]), help="[default: onnxruntime]")
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
    backend: Literal["onnxruntime", "openvino"] | None,
    instances: int | None,
    threads: int | None,
    output: Path | None,
) -> None:
    """Rewrite a checkpoint exactly, prove it on real images and publish it as the next version of its model."""
    from export.errors import ExportError
    from export.graph import export as export_onnx
    from export.openvino_engine import check_accuracy, has_bfloat16
    from export.own_data import own_dataset
    from export.precision import Lowering
    from export.publish import publish
    from export.rewrites import absorb, fold, pipeline, prune
    from export.triton_config import Serving
    from models.checkpoint import CheckpointError, UntrainedBlockWarning, load
    from models.data import DataError
    from models.files import write_atomically
    from models.macs import macs_per_image

    if model and checkpoint:
        raise click.UsageError("expected --model or --checkpoint, found both")
    if output and (backend or instances or threads):
        raise click.UsageError("expected --output alone, found what belongs to a repository")
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
        measured = precision != "fp32" or backend == "openvino"
        dataset = own_dataset(config, loaded.metrics, data_dir) if measured else None
        lowering = Lowering(precision, dataset, max_accuracy_drop) if precision != "fp32" and dataset else None
        exported = export_onnx(loaded, rewrites, required, opset, lowering, _sample(loaded, data_dir))
        _print_steps(macs_per_image(loaded.model), exported.steps)
        for proof in exported.proofs:
            click.echo(f"Proved {proof} of {exported.manifest['proved_on']}")
        if exported.converted:
            click.echo(f"Converted to {precision}: {exported.converted}")
        artifact, name, bfloat16 = exported.artifact, name or _name(model or config.model, backend), False
        if backend == "openvino" and dataset:
            bfloat16 = has_bfloat16()
            found = check_accuracy(exported.onnx, dataset, max_accuracy_drop, bfloat16)
            click.echo(f"Measured {found}")
            artifact = replace(artifact, manifest=artifact.manifest | {"test_accuracy": found.accuracy})
        if output:
            write_atomically(output, exported.onnx)
            write_atomically(output.with_suffix(".json"), artifact.manifest_json())
        else:
            output = publish(repository, name, artifact, Serving(backend, instances, threads, bfloat16))
    except (CheckpointError, DataError, ExportError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Wrote {output} ({len(exported.onnx) / 1e6:.1f} MB)")


def _sample(loaded: Checkpoint, data_dir: Path | None) -> Sample:
    """What to prove on; where the model's own images are not at hand, says so."""
    from export.equivalence import embedded_sample
    from export.own_data import own_sample
    from models.data import DataError

    try:
        return own_sample(loaded.config, loaded.metrics, data_dir)
    except DataError as missing:
        sample = embedded_sample(loaded.config)
        click.echo(f"Note: proved on {sample.of}, not on the model's own images; {missing}", err=True)
        return sample


def _name(model: str, backend: str | None) -> str:
    """An engine that is not the default one serves a model of its own, beside the other."""
    return model if backend in (None, "onnxruntime") else f"{model}_{backend}"


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
