"""Command line of the TensorRT stage: ONNX -> engine -> model repository. `python export/to_tensorrt.py --help`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from models.catalog import SHIPPED, shipped


@click.command()
@click.option("--onnx", "onnx_file", type=click.Path(path_type=Path), help="A file of to_onnx.py, fp32 or fp16.")
@click.option("--model", type=click.Choice(SHIPPED), help="A shipped checkpoint, all rewrites.  [default: vitbn]")
@click.option("--precision", type=click.Choice(["fp32", "fp16"]), default="fp32", show_default=True)
@click.option("--min-batch", type=click.IntRange(1), default=1, show_default=True)
@click.option("--opt-batch", type=click.IntRange(1), default=64, show_default=True, help="To be fastest at.")
@click.option("--max-batch", type=click.IntRange(1), default=5000, show_default=True)
@click.option("--timing-cache", type=click.Path(path_type=Path), help="Read and written: later builds are quicker.")
@click.option("--version-compatible", is_flag=True, help="To load in later TensorRTs of the same major version.")
@click.option("--hardware-compatible", is_flag=True, help="To run on other GPUs too, Ampere and later.")
@click.option("--workspace", type=click.IntRange(1), metavar="MIB", help="Scratch memory of a layer.  [default: all]")
@click.option("--data-dir", type=click.Path(path_type=Path), help="The model's dataset, to measure fp16 on.")
@click.option("--repository", type=click.Path(path_type=Path), default=Path("triton_repo"), show_default=True)
@click.option("--name", help="To serve the engine under.  [default: the model's, with _trt]")
@click.option("--output", type=click.Path(path_type=Path), help="Write only this plan and its manifest.")
def tensorrt(
    onnx_file: Path | None,
    model: str | None,
    precision: Literal["fp32", "fp16"],
    min_batch: int,
    opt_batch: int,
    max_batch: int,
    timing_cache: Path | None,
    version_compatible: bool,
    hardware_compatible: bool,
    workspace: int | None,
    data_dir: Path | None,
    repository: Path,
    name: str | None,
    output: Path | None,
) -> None:
    """Build a TensorRT engine, compare it with ONNX Runtime on real digits and publish it as <model>_trt."""
    if onnx_file and model:
        raise click.UsageError("expected --onnx or --model, found both")
    if not min_batch <= opt_batch <= max_batch:
        raise click.UsageError(
            f"expected --min-batch <= --opt-batch <= --max-batch, found {min_batch}, {opt_batch}, {max_batch}"
        )
    from export.gpu import MissingError, require

    try:
        gpu = require()
    except MissingError as error:
        raise click.ClickException(str(error)) from error

    from export.engine import EngineOptions, make
    from export.errors import ExportError
    from export.graph import export as export_onnx
    from export.onnx_source import from_export, in_precision, read_source
    from export.own_data import own_dataset
    from export.precision import Lowering
    from export.publish import publish
    from export.rewrites.pipeline import ALL
    from export.triton_config import Serving
    from models.checkpoint import CheckpointError, load
    from models.data import DataError
    from models.files import write_atomically

    def lowering() -> Lowering:
        dataset = own_dataset(source.config, source.manifest["metrics"], data_dir)
        return Lowering("fp16", dataset, MAX_ACCURACY_DROP)

    try:
        source = read_source(onnx_file) if onnx_file else from_export(export_onnx(load(shipped(model or "vitbn")), ALL))
        click.echo(f"Read {onnx_file or shipped(model or 'vitbn')}; building for {gpu.name}")
        source = in_precision(source, precision, lowering)
        options = EngineOptions(
            precision,
            min_batch,
            opt_batch,
            max_batch,
            timing_cache,
            version_compatible,
            hardware_compatible,
            workspace,
        )
        built = make(source, options, gpu)
        facts = built.artifact.manifest["engine"]
        layers = ", ".join(f"{count} in {types}" for types, count in built.layer_types.items())
        click.echo(f"Built in {facts['build_s']:.1f} s by TensorRT {facts['tensorrt']}; products of {layers}")
        click.echo(f"Proved {built.proof}")
        if output:
            write_atomically(output, built.artifact.data)
            write_atomically(output.with_suffix(".json"), built.artifact.manifest_json())
        else:
            serving = Serving("tensorrt", max_batch_size=max_batch, graph_batches=options.batches)
            output = publish(repository, name or f"{model or source.config.model}_trt", built.artifact, serving)
    except (CheckpointError, DataError, ExportError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Wrote {output} ({len(built.artifact.data) / 1e6:.1f} MB)")


MAX_ACCURACY_DROP = 0.1  # percentage points; other limits: to_onnx.py --precision fp16, then --onnx

if __name__ == "__main__":
    tensorrt()
