"""The options of commands that train: fields of TrainingOptions, the checkpoint's --output, and --params.

`--params FILE` gives options their values: a JSON object, such as `vitbn tune` writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, TypeVar

import click

import vitbn_packages
from common.files import reason
from common.finite_range import FiniteRange
from common.given_path import GivenPath
from models.training.recipe import Numbers, TrainingOptions

Command = TypeVar("Command", bound=Callable[..., Any])

CHECKPOINTS = Path("checkpoints")


def _option(of: Field[Any]) -> Callable[[Command], Command]:
    """The command-line option of a field of TrainingOptions."""
    values = of.metadata["values"]
    about: dict[str, Any] = {"help": of.metadata["help"], "metavar": of.metadata["metavar"], "default": of.default}
    about["show_default"] = of.default is not None and of.default is not False
    if values is bool:
        about["is_flag"] = True
    elif values is Path:
        about["type"] = GivenPath(path_type=str)
    elif isinstance(values, Numbers):
        bounds: Any = values[1:]
        about["type"] = click.IntRange(*bounds) if values.kind is int else FiniteRange(*bounds)
    else:
        about["type"] = click.Choice(values)
    return click.option(f"--{of.name.replace('_', '-')}", **about)


def training_options(command: Command) -> Command:
    """Gives a command an option for each field of TrainingOptions."""
    for each in reversed(fields(TrainingOptions)):
        command = _option(each)(command)
    return command


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


def read_params(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    """Callback of --params: makes the file's values the defaults of the command's options."""
    if path is None:
        return
    try:
        values = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise click.BadParameter(f"{path}: expected a JSON object of options, found {reason(error)}") from error
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
    """Callback of --model: refuses another model than that of --params."""
    meant = (ctx.default_map or {}).get("model", model)
    if meant != model:
        raise click.BadParameter(f"expected the model that --params is for, {meant}, found {model}")
    return model
