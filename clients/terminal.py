"""Answers to standard output; failures, notes and, in a terminal, a progress bar to standard error."""

import io
import sys
from collections.abc import Callable
from types import TracebackType

import click


class Terminal:
    """`total` counts the pictures; called only for a bar."""

    def __init__(self, total: Callable[[], int]) -> None:
        self.failures = 0
        if isinstance(sys.stdout, io.TextIOWrapper):  # file names may not fit the terminal's encoding
            sys.stdout.reconfigure(errors="backslashreplace")
        self._bar = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total(), unit=" images", file=sys.stderr, delay=1, leave=False, dynamic_ncols=True)

    def failed(self, name: str, what: str) -> None:
        self.failures += 1
        text = what if what.startswith(name) else f"{name}: {what.removeprefix('image: ')}"
        self.print(f"Error: {printable(text)}", err=True)
        self.advance()

    def noted(self, name: str, what: str) -> None:
        self.print(f"Note: {printable(name)}: {what}", err=True)

    def print(self, lines: str, err: bool = False) -> None:
        stream = sys.stderr if err else sys.stdout
        if self._bar is not None and stream.isatty():  # the bar must make room
            self._bar.write(lines, file=stream)
        else:
            click.echo(lines, err=err)

    def advance(self) -> None:
        if self._bar is not None:
            self._bar.update()

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def printable(text: str) -> str:
    """One line; escapes unprintable characters as Python's strings do."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
