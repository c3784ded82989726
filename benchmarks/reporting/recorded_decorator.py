"""The decorator of benchmark commands: writes rows as they are measured, and prints tables at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from benchmarks.measure.devices import cores
from benchmarks.measure.options import json_option
from benchmarks.measure.result_file import recording

Command = Callable[..., int | None]


def recorded(*tables: str, threads: int | None = None) -> Callable[[Command], Callable[..., None]]:
    """Adds --json to a command, which gets the `Record` as its first argument and may return an exit code.

    `tables`: names in TABLES. `threads`: the number that the result states; None: all cores. A command that learns
    device or threads later sets them in the record.
    """

    def decorate(command: Command) -> Callable[..., None]:
        @json_option
        @wraps(command)
        def run(json_path: Path | None, **values: Any) -> None:
            from benchmarks.reporting.tables import show

            with recording(json_path, threads or cores()) as record:
                code = command(record, **values)
                if tables:
                    click.echo(show(record.run(), *tables))
            if code:
                click.get_current_context().exit(code)

        return run

    return decorate
