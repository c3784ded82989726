"""The running command as a result records it: with the options that the user gave, and FILE or DIR for local paths."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from typing import Any

import click
from click.core import ParameterSource

PROGRAM = "benchmarks.program"
"""Key in a click context's `meta`: the words before the options, if they are not `python benchmarks/NAME.py`."""


def command(omitted: Collection[str] = ()) -> str:
    """The running command as a line, without the parameters `omitted`."""
    context = click.get_current_context()
    words = [context.meta.get(PROGRAM, f"python benchmarks/{context.command.name}.py")]
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in omitted and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            words += _option_words(parameter, context.params[name])
    return " ".join(words)


def _option_words(parameter: click.Parameter, value: Any) -> Iterator[str]:
    if isinstance(parameter, click.Option) and parameter.is_flag:
        yield parameter.opts[0]
        return
    for item in value if parameter.multiple or parameter.nargs == -1 else [value]:
        if isinstance(parameter, click.Option):
            yield parameter.opts[0]
        yield _value_word(parameter, item)


def _value_word(parameter: click.Parameter, value: Any) -> str:
    if isinstance(parameter.type, click.Path):
        return "FILE" if parameter.type.file_okay and not parameter.type.dir_okay else "DIR"
    if isinstance(value, list):  # --sharing
        return "x".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else shlex.quote(str(value))
