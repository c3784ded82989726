"""Command line: a checkpoint and pictures of a new source -> a checkpoint with their BatchNorm statistics."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

import vitbn_packages  # first: reports another `models` that hides ours
from common.given_path import GivenPath
from models.training.command_options import CHECKPOINTS, check_output


@click.command()
@click.argument("checkpoint", type=GivenPath(path_type=Path))
@click.argument("folder", type=GivenPath(path_type=Path))
@click.option(
    "--output",
    type=GivenPath(path_type=Path),
    callback=check_output,
    help="Default: checkpoints/<checkpoint>-<folder>.safetensors.",
)
@vitbn_packages.one_line_errors()
def adapt(checkpoint: Path, folder: Path, output: Path | None) -> None:
    """Copy CHECKPOINT with the BatchNorm statistics of the pictures in FOLDER, which need no labels."""
    from models.training.batch_norm_adaptation import adapt_checkpoint

    output = output or CHECKPOINTS / f"{checkpoint.stem}-{folder.resolve().name}.safetensors"
    count, notes = adapt_checkpoint(checkpoint, folder, output)
    for note in notes:
        click.echo(note)
    click.echo(f"Wrote {output}: {checkpoint} with the BatchNorm statistics of {count} pictures in {folder}")
    click.echo(f"Export it: vitbn export --checkpoint {shlex.quote(str(output))}")


if __name__ == "__main__":
    adapt(prog_name="vitbn adapt")
