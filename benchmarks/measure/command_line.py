"""The running command as a result states it: with the options that were given, and FILE or DIR for local paths."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator
from typing import Any

import click
from click.core import ParameterSource

PROGRAM = "benchmarks.program"
"""Key of a context's `meta`: the words before the options, if they are not `python benchmarks/NAME.py`."""


def command(unsaid: Collection[str] = ()) -> str:
    """The command as one line, without the parameters `unsaid`."""
    context = click.get_current_context()
    words = [context.meta.get(PROGRAM, f"python benchmarks/{context.command.name}.py")]
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in unsaid and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            words += _words(parameter, context.params[name])
    return " ".join(words)


def _words(parameter: click.Parameter, value: Any) -> Iterator[str]:
    if isinstance(parameter, click.Option) and parameter.is_flag:
        yield parameter.opts[0]
        return
    for each in value if parameter.multiple or parameter.nargs == -1 else [value]:
        if isinstance(parameter, click.Option):
            yield parameter.opts[0]
        yield _word(parameter, each)


def _word(parameter: click.Parameter, value: Any) -> str:
    if isinstance(parameter.type, click.Path):
        return "FILE" if parameter.type.file_okay and not parameter.type.dir_okay else "DIR"
    if isinstance(value, list):  # of --sharing
        return "x".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else shlex.quote(str(value))
