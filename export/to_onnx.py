"""Command line of the exporter: checkpoint -> proven ONNX -> model repository. `python export/to_onnx.py --help`."""

from __future__ import annotations

import warnings
from pathlib import Path

import click

CHECKPOINTS = Path("checkpoints")


@click.command()
@click.option("--checkpoint", type=click.Path(path_type=Path), help="A .safetensors of ours or a published .pth.")
@click.option("--depth", type=click.IntRange(1), help="Read only the first N blocks of the checkpoint.")
@click.option("--fuse-bn/--no-fuse-bn", default=True, show_default=True, help="Fold every BatchNorm away, exactly.")
@click.option("--opset", type=click.IntRange(18, 21), default=20, show_default=True, help="Of the ONNX file.")
@click.option("--repository", type=click.Path(path_type=Path), default=Path("triton_repo"), show_default=True)
@click.option("--name", help="To serve the model under; default: the model's own, such as vitbn.")
@click.option("--output", type=click.Path(path_type=Path), help="Write only this ONNX file and its manifest.")
def export(
    checkpoint: Path | None,
    depth: int | None,
    fuse_bn: bool,
    opset: int,
    repository: Path,
    name: str | None,
    output: Path | None,
) -> None:
    """Rewrite a checkpoint exactly, prove it on real digits and publish it as the next version of its model.

    Without --checkpoint the newest in checkpoints/ is taken.
    """
    import json

    from export.equivalence import EquivalenceError
    from export.graph import export as export_onnx
    from export.repository import PublishError, publish
    from export.rewrites import RewriteError
    from models.checkpoint import CheckpointError, UntrainedBlockWarning, load, newest
    from models.files import write_atomically

    try:
        path = checkpoint or newest(CHECKPOINTS)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UntrainedBlockWarning)
            loaded = load(path, depth)
        for warning in caught:
            click.echo(f"Warning: {warning.message}", err=True)
        config = loaded.config
        what = config.model if config.model == "cnn" else f"{config.model}, depth {config.depth}"
        click.echo(f"Read {path}: {what}")
        exported = export_onnx(loaded, fuse_bn, opset)
        for proof in exported.proofs:
            click.echo(f"Proved {proof}")
        if output:
            write_atomically(output, exported.onnx)
            write_atomically(output.with_suffix(".json"), json.dumps(exported.manifest, indent=2).encode())
        else:
            output = publish(repository, name or config.model, exported)
    except (CheckpointError, RewriteError, EquivalenceError, PublishError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Wrote {output} ({len(exported.onnx) / 1e6:.1f} MB)")


if __name__ == "__main__":
    export()
