"""A run: what a command measured, as JSON, checked against run.schema.json when it is written and read.

`pandas.DataFrame(json.load(file)["rows"])` is its table. Its command has the options that the user gave, and FILE
or DIR for local paths.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from common.files import reason
from models.training.machine_description import commit, describe
from vitbn_packages import one_line_errors

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


Row = Mapping[str, Any]
"""A measurement, or with the key `reason` a measurement that was left out.

Not a dataclass: the kinds of measurement share few fields. The schema names the fields of timed calls and of loads.
"""

STEADY = "steady.json"  # benchmarks/steady.py writes it into the folder of the machine's results
DIRTY = "measured from a working tree with uncommitted changes"
NO_COMMIT = "measured outside a git repository"


class RunError(Exception):
    """A result that cannot be read or does not fit the schema; the message names the file."""


@dataclass(frozen=True)
class Run:
    """The content of a result. `doubt`: why the figures cannot be reproduced, such as uncommitted changes."""

    command: str | None
    commit: str | None
    date: str | None
    machine: Mapping[str, Any]
    limits: Mapping[str, Any] | None
    rows: Sequence[Row]
    interrupted: bool | None = None
    doubt: str | None = None

    def text(self) -> str:
        """The file's JSON. Raises RunError if the run does not fit the schema."""
        optional = ("interrupted", "doubt")
        fields = {name: value for name, value in asdict(self).items() if value is not None or name not in optional}
        content: dict[str, Any] = json.loads(text := json.dumps(fields, indent=1))
        _check("a result", content)
        return text + "\n"


def read(path: Path) -> Run:
    """Raises RunError."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: expected a JSON file, found {reason(error)}") from error
    _check(str(path), content)
    return Run(**content)


def _check(what: str, content: object) -> None:
    import jsonschema

    error = jsonschema.exceptions.best_match(_validator().iter_errors(content))
    if error is not None:
        raise RunError(
            f"{what}: expected the form of run.schema.json, found at {error.json_path} {error.message[:200]}"
        )


@cache
def _validator() -> Any:
    import jsonschema

    schema = json.loads(Path(__file__).with_name("run.schema.json").read_text())
    return jsonschema.Draft202012Validator(schema)


class Record:
    """The rows of the running command, written to `path`, if given.

    `commit` is read at the start: a result that git tracks changes the working tree when it is written.
    """

    def __init__(self, path: Path | None, threads: int) -> None:
        self.path, self.threads, self.device, self.commit = path, threads, "cpu", commit()
        self.command, self.date = command(), datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.limits: Mapping[str, Any] | None = None
        self.rows: Sequence[Row] = ()

    def update(self, rows: Sequence[Row], limits: Mapping[str, Any] | None = None, interrupted: bool = False) -> None:
        """Replaces the rows and writes the file at once, so an interrupted run keeps its measurements."""
        from common.files import write_atomically

        self.rows, self.limits = rows, limits or self.limits
        if self.path:
            write_atomically(self.path, self.run(interrupted).text().encode())

    def add(self, *rows: Row) -> None:
        self.update([*self.rows, *rows])

    def run(self, interrupted: bool = False) -> Run:
        machine = describe(self.threads, self.device) | self._steadiness()
        doubt = NO_COMMIT if self.commit is None else DIRTY if self.commit.endswith("-dirty") else None
        return Run(self.command, self.commit, self.date, machine, self.limits, self.rows, interrupted or None, doubt)

    def _steadiness(self) -> dict[str, Any]:
        """Whether the machine is steady, as the file STEADY in the result's folder says; empty without the file."""
        file = self.path.with_name(STEADY) if self.path else None
        if file is None or file == self.path or not file.is_file():
            return {}
        row = read(file).rows[0]
        return {name: row[name] for name in ("steady", "reasons")}


@contextmanager
def recording(path: Path | None, threads: int) -> Iterator[Record]:
    """A `Record` for a `with` block. After Ctrl-C or an error its result is `interrupted`; Ctrl-C exits with 130.

    Raises ClickException for an OSError and for the errors that the project's packages define.
    """
    record = Record(path, threads)
    with one_line_errors():
        try:
            yield record
        except KeyboardInterrupt:
            if record.rows:
                record.update(record.rows, interrupted=True)
                _print_path(record)
            click.echo("Interrupted: only the finished rounds count", err=True)
            raise click.exceptions.Exit(130) from None
        except Exception:
            if record.rows:
                with suppress(OSError):  # the disk may be full; the first error says more
                    record.update(record.rows, interrupted=True)
            raise
    _print_path(record)


def _print_path(record: Record) -> None:
    if record.path and record.rows:
        click.echo(f"Wrote {record.path}")
