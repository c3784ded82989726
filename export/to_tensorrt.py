"""Command line: builds a TensorRT engine from an ONNX file, and publishes it in a model repository."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from common.given_path import GivenPath
from export.precision_table import IN_A_PLAN
from export.to_onnx import DEFAULT_REPOSITORY, check_output_alone, repository_option
from models.catalog import SHIPPED, NameChoice, relative, shipped
from vitbn_packages import one_line_errors

if TYPE_CHECKING:
    from export.engines.tensorrt_engine import Built
    from export.publishing.artifact import Artifact

VERSION = r"\d+(\.\d+){1,3}"


def _version(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    import re

    if value is not None and not re.fullmatch(VERSION, value):
        raise click.BadParameter(f"expected a version such as 10.4.0, found {value!r}")
    return value


@click.command()
@click.option("--onnx", "onnx_file", type=GivenPath(path_type=Path), help="A file from to_onnx.py, fp32 or fp16.")
@click.option("--model", type=NameChoice(SHIPPED), help="A shipped checkpoint, all rewrites.  [default: vitbn]")
@click.option("--precision", type=click.Choice(IN_A_PLAN), default="fp32", show_default=True)
@click.option("--min-batch", type=click.IntRange(1), default=1, show_default=True)
@click.option("--opt-batch", type=click.IntRange(1), default=64, show_default=True, help="The size to optimise for.")
@click.option("--max-batch", type=click.IntRange(1), default=5000, show_default=True)
@click.option(
    "--server-tensorrt", metavar="VERSION", callback=_version, help="The server's.  [default: this machine's]"
)
@click.option("--timing-cache", type=GivenPath(path_type=Path), help="Read and written; speeds up later builds.")
@click.option("--version-compatible", is_flag=True, help="Loads in later TensorRTs of the same major version.")
@click.option("--hardware-compatible", is_flag=True, help="Runs on other GPUs too, Ampere and later.")
@click.option("--workspace", "workspace_mib", type=click.IntRange(1), metavar="MIB", help="Scratch.  [default: all]")
@click.option("--data-dir", type=GivenPath(path_type=Path), help="The model's dataset, for measuring accuracy.")
@repository_option
@click.option("--name", help="Model name.  [default: the network's, with _trt]")
@click.option("--output", type=GivenPath(path_type=Path), help="Write only this plan, its manifest and sample.")
@one_line_errors()
def tensorrt(
    onnx_file: Path | None,
    model: str | None,
    server_tensorrt: str | None,
    data_dir: Path | None,
    repository: Path | None,
    name: str | None,
    output: Path | None,
    **options: Any,
) -> None:
    """Build a TensorRT engine, compare it with ONNX Runtime on real digits and publish it as <model>_trt."""
    check_output_alone(output, repository or name)
    _check(onnx_file, model, output, options)
    from export.engines.gpu import require_for_server

    gpu = require_for_server(server_tensorrt, options["version_compatible"])
    from export.checkpoint_to_version import check_destination, export_engine, served_name, write
    from export.engines.tensorrt_engine import EngineOptions
    from export.publishing.build_config_pbtxt import Serving

    check_destination(name, output, repository or DEFAULT_REPOSITORY)
    source = _source(onnx_file, model or "vitbn")
    click.echo(f"Read {relative(onnx_file or shipped(model or 'vitbn'))}; building for {gpu.name}")
    built = export_engine(source, EngineOptions(**options), gpu, data_dir)
    name = name or served_name(model or source.config.model, "trt")
    path = write(built.artifact, output, repository or DEFAULT_REPOSITORY, name, Serving("tensorrt"))
    _print(built, options["version_compatible"])
    click.echo(f"Wrote {path} ({len(built.artifact.data) / 1e6:.1f} MB)")


def _check(onnx_file: Path | None, model: str | None, output: Path | None, options: dict[str, Any]) -> None:
    if onnx_file and model:
        raise click.UsageError("expected --onnx or --model, found both")
    if onnx_file and output and onnx_file.exists() and output.exists() and output.samefile(onnx_file):
        raise click.UsageError(f"--output: expected another file than --onnx, found {output}")
    smallest, best, largest = (options[name] for name in ("min_batch", "opt_batch", "max_batch"))
    if not smallest <= best <= largest:
        raise click.UsageError(
            f"expected --min-batch <= --opt-batch <= --max-batch, found {smallest}, {best}, {largest}"
        )


def _source(onnx_file: Path | None, model: str) -> Artifact:
    """The ONNX file with its sidecars; without a file, an export of the shipped checkpoint `model`."""
    from common.repository import ONNX_FILE
    from export.checkpoint_to_onnx import Form
    from export.checkpoint_to_version import export_checkpoint
    from export.errors import PublishError
    from export.publishing.sidecar import read_with_sidecars

    if onnx_file:
        source = read_with_sidecars(onnx_file)
        if source.manifest.file != ONNX_FILE:
            raise PublishError(f"{onnx_file}: expected the manifest of an ONNX file, found of a {source.manifest.file}")
        return source
    return export_checkpoint(shipped(model), Form("all", fuse_attention=True)).artifact


def _print(built: Built, version_compatible: bool) -> None:
    facts = built.engine.facts
    layers = ", ".join(f"{count} in {types}" for types, count in facts["layer_types"].items()) or "types that it hides"
    click.echo(f"Built in {facts['build_s']:.1f} s by TensorRT {facts['tensorrt']}; layers: {layers}")
    if not facts["layer_types"]:
        click.echo("Warning: TensorRT's inspector named no layer's type: the precision is not verified", err=True)
    click.echo(f"Proved {built.comparison}")
    click.echo(f"Measured {built.accuracy}" if built.accuracy else "Accuracy: not measured, no test images at hand")
    flags = " --backend-config=tensorrt,version-compatible=true" if version_compatible else ""
    later = " or a later minor version" if version_compatible else ""
    click.echo(f"For servers with TensorRT {facts['tensorrt']}{later}: tritonserver --exit-on-error=false{flags}")


if __name__ == "__main__":
    tensorrt()
