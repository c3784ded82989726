"""Callbacks of `--params FILE`, which gives options their values: a JSON object, such as `vitbn tune` writes."""

from __future__ import annotations

import json
from pathlib import Path

import click


def read_params(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{path}: expected a JSON object of options, found {error}") from error
    not_options = {"params", "output", "resume", "overwrite", "report", "track", "data_dir", "adapt_to"}
    known = {option.name for option in ctx.command.params} - not_options
    unknown = sorted(values.keys() - known) if isinstance(values, dict) else [type(values).__name__]
    if unknown:
        raise click.BadParameter(f"{path}: expected options out of {', '.join(sorted(known))}, found {unknown[0]}")
    options = {option.name: option for option in ctx.command.params}
    given = {name: value for name, value in values.items() if value is not None}
    ctx.default_map = {name: _as_words(path, options[name], value) for name, value in given.items()}


def _as_words(path: Path, option: click.Parameter, value: object) -> str | list[str]:
    """The value as typed text: click would cut the number 1.9 to the integer 1, but refuses the text 1.9."""
    if isinstance(value, dict) or isinstance(value, list) != (option.nargs > 1):
        values = f"{option.nargs} values" if option.nargs > 1 else "one value"
        raise click.BadParameter(f"{path}: expected {values} for {option.name}, found {value}")
    return [str(each) for each in value] if isinstance(value, list) else str(value)


def check_model(ctx: click.Context, param: click.Parameter, model: str) -> str:
    meant = (ctx.default_map or {}).get("model", model)
    if meant != model:
        raise click.BadParameter(f"expected the model that --params is for, {meant}, found {model}")
    return model
