"""Where a command writes a checkpoint."""

from __future__ import annotations

from pathlib import Path

import click

import vitbn_packages

CHECKPOINTS = Path("checkpoints")


def check_output(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Callback of a checkpoint's --output: refuses other endings and folders."""
    # The file of the series has .json in place of the ending: lr0.01 and lr0.02 would share lr0.json.
    try:
        free = path is None or path.is_file() or not path.exists()
    except OSError as error:
        raise click.BadParameter(vitbn_packages.in_words(error)) from error
    if path and (path.suffix not in ("", ".safetensors") or not path.name or not free):
        raise click.BadParameter(f"expected a file for the checkpoint, such as run.safetensors, found {path}")
    return path
