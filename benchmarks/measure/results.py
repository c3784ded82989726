"""Writes all results: JSON with `benchmark` (or `study`), `command`, `date`, and `environment` with a commit."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

Extras = Callable[[Mapping[str, Any]], Mapping[Path, bytes]]
"""Pictures and pages to be written beside a result, made from its content."""


class Record:
    def __init__(self, name: Mapping[str, str], path: Path | None, threads: int, device: str) -> None:
        self.path, self.threads, self.device = path, threads, device
        self.content: dict[str, Any] = {**name, "command": command(), "date": _now()}

    @property
    def is_empty(self) -> bool:
        return "environment" not in self.content

    def update(self, fields: Mapping[str, Any]) -> None:
        """Writes the file at once: an interrupted run keeps its measurements."""
        from models.environment import describe
        from models.files import write_atomically

        self.content |= {"environment": describe(self.threads, self.device), **fields}
        if self.path:
            write_atomically(self.path, json.dumps(self.content, indent=2).encode())


@contextmanager
def recording(
    benchmark: str,
    path: Path | None,
    threads: int,
    device: str = "cpu",
    extras: Extras = lambda content: {},
    kind: str = "benchmark",
) -> Iterator[Record]:
    """Writes the extras at the end.

    Ctrl-C and errors mark the measurements `interrupted`; Ctrl-C exits with 130. Raises ClickException for lost
    servers and OSError.
    """
    from clients.errors import ClientError
    from serving.running import ServerFailed

    record = Record({kind: benchmark}, path, threads, device)
    try:
        yield record
    except KeyboardInterrupt:
        if not record.is_empty:
            record.update({"interrupted": True})
            _finish(record, extras)
        click.echo("Interrupted: only the finished rounds count", err=True)
        raise click.exceptions.Exit(130) from None
    except Exception as error:
        if not record.is_empty:
            with suppress(OSError):  # of a full disk; the first error says more
                record.update({"interrupted": True})
        if isinstance(error, (ClientError, ServerFailed, OSError)):
            raise click.ClickException(str(error)) from error
        raise
    _finish(record, extras)


def _finish(record: Record, extras: Extras) -> None:
    from models.files import write_atomically

    contents = extras(record.content)
    for path, content in contents.items():
        write_atomically(path, content)
    for path in ([record.path] if record.path else []) + list(contents):
        click.echo(f"Wrote {path}")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def command() -> str:
    """The command without default options; FILE and DIR replace local paths."""
    context = click.get_current_context()
    words = ["python", f"benchmarks/{context.command.name}.py"]
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
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
    if isinstance(value, list):
        return shlex.quote(",".join(map(str, value)))
    return f"{value:g}" if isinstance(value, float) else shlex.quote(str(value))
