"""Command line of the TensorRT stage: ONNX -> engine -> model repository. `python export/to_tensorrt.py --help`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from models.catalog import SHIPPED, relative, shipped

if TYPE_CHECKING:
    from export.engines.onnx_source import OnnxSource
    from export.engines.tensorrt_engine import Built


@click.command()
@click.option("--onnx", "onnx_file", type=click.Path(path_type=Path), help="A file from to_onnx.py, fp32 or fp16.")
@click.option("--model", type=click.Choice(SHIPPED), help="A shipped checkpoint, all rewrites.  [default: vitbn]")
@click.option("--precision", type=click.Choice(["fp32", "fp16"]), default="fp32", show_default=True)
@click.option("--min-batch", type=click.IntRange(1), default=1, show_default=True)
@click.option("--opt-batch", type=click.IntRange(1), default=64, show_default=True, help="The size to optimise for.")
@click.option("--max-batch", type=click.IntRange(1), default=5000, show_default=True)
@click.option("--timing-cache", type=click.Path(path_type=Path), help="Read and written; speeds up later builds.")
@click.option("--version-compatible", is_flag=True, help="Loads in later TensorRTs of the same major version.")
@click.option("--hardware-compatible", is_flag=True, help="Runs on other GPUs too, Ampere and later.")
@click.option("--workspace", "workspace_mib", type=click.IntRange(1), metavar="MIB", help="Scratch.  [default: all]")
@click.option("--data-dir", type=click.Path(path_type=Path), help="The model's dataset, for measuring fp16.")
@click.option("--repository", type=click.Path(path_type=Path), default=Path("triton_repo"), show_default=True)
@click.option("--name", help="Model name.  [default: the network's, with _trt]")
@click.option("--output", type=click.Path(path_type=Path), help="Write only this plan and its manifest.")
def tensorrt(
    onnx_file: Path | None,
    model: str | None,
    data_dir: Path | None,
    repository: Path,
    name: str | None,
    output: Path | None,
    **options: Any,
) -> None:
    """Build a TensorRT engine, compare it with ONNX Runtime on real digits and publish it as <model>_trt."""
    _check(onnx_file, model, options)
    from export.engines.gpu import require
    from export.errors import ExportError

    try:
        gpu = require()
        from export.engines.tensorrt_engine import EngineOptions
        from export.pipeline import Destination, export_engine, served_name
        from models.data import DataError
    except ExportError as error:
        raise click.ClickException(str(error)) from error
    if model and name is None:
        name = served_name(model, "trt")
    try:
        destination = Destination(repository, name, output)
        source = _source(onnx_file, model or "vitbn")
        click.echo(f"Read {relative(onnx_file or shipped(model or 'vitbn'))}; building for {gpu.name}")
        built, path = export_engine(source, EngineOptions(**options), gpu, destination, data_dir)
    except (DataError, ExportError, OSError) as error:
        raise click.ClickException(str(error)) from error
    _print(built)
    click.echo(f"Wrote {path} ({len(built.artifact.data) / 1e6:.1f} MB)")


def _check(onnx_file: Path | None, model: str | None, options: dict[str, Any]) -> None:
    if onnx_file and model:
        raise click.UsageError("expected --onnx or --model, found both")
    smallest, best, largest = (options[name] for name in ("min_batch", "opt_batch", "max_batch"))
    if not smallest <= best <= largest:
        raise click.UsageError(
            f"expected --min-batch <= --opt-batch <= --max-batch, found {smallest}, {best}, {largest}"
        )


def _source(onnx_file: Path | None, model: str) -> OnnxSource:
    """The ONNX file, else the shipped `model` with all rewrites."""
    from export.engines.onnx_source import from_export, read_source
    from export.pipeline import ExportOptions, export_checkpoint

    if onnx_file:
        return read_source(onnx_file)
    return from_export(export_checkpoint(shipped(model), ExportOptions(optimize=True)).exported)


def _print(built: Built) -> None:
    facts = built.artifact.manifest["engine"]
    layers = ", ".join(f"{count} in {types}" for types, count in built.layer_types.items())
    click.echo(f"Built in {facts['build_s']:.1f} s by TensorRT {facts['tensorrt']}; products of {layers}")
    click.echo(f"Proved {built.proof}")


if __name__ == "__main__":
    tensorrt()
