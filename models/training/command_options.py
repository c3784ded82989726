"""The options of a training's command: a field of TrainingOptions each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from models.training.recipe import Numbers, TrainingOptions

Command = TypeVar("Command", bound=Callable[..., Any])


def _finite(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"expected a finite number, found {value}")
    return value


def _option(of: Field[Any]) -> Callable[[Command], Command]:
    """The command-line option of a field of TrainingOptions."""
    values = of.metadata["values"]
    about: dict[str, Any] = {"help": of.metadata["help"], "metavar": of.metadata["metavar"], "default": of.default}
    about["show_default"] = of.default is not None and of.default is not False
    if values is bool:
        about["is_flag"] = True
    elif values is Path:
        about["type"] = click.Path(path_type=str)
    elif isinstance(values, Numbers):
        bounds: Any = values[1:]
        about["type"] = click.IntRange(*bounds) if values.kind is int else click.FloatRange(*bounds)
        about["callback"] = _finite
    else:
        about["type"] = click.Choice(values)
    return click.option(f"--{of.name.replace('_', '-')}", **about)


def training_options(command: Command) -> Command:
    """Gives a command an option for each field of TrainingOptions."""
    for each in reversed(fields(TrainingOptions)):
        command = _option(each)(command)
    return command
