"""Tables of what commands refuse. A row: command, words as a shell reads them, exit code, a part of the error line."""

import contextlib
import shlex
from pathlib import Path

import click
from commands import invoke

Row = tuple[click.Command, str, int, str]


def contents(folder: Path) -> dict[Path, bytes | None]:
    """Of files and folders, but for the hidden files of locks."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("[!.]*")}


def check_refused(place: Path, command: click.Command, words: str, code: int, said: str) -> str:
    """In the folder `place`: one line with all parts of `said`, between which stands …, and no file written or changed.

    Returns what is printed.
    """
    before = contents(place)
    with contextlib.chdir(place):
        refused = invoke(command, *shlex.split(words))
    assert isinstance(refused.exception, SystemExit), refused.exception
    *_, line = refused.stderr.splitlines()
    named = all(part in line for part in said.split(" … "))
    assert (refused.exit_code, line.startswith("Error: "), named) == (code, True, True), refused.output
    assert refused.output.count("Error: ") == 1, refused.output
    assert len(line) < 300
    assert contents(place) == before
    return str(refused.output)
