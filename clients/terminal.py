"""Answers on standard output, failures and notes on standard error, where a terminal also shows a progress bar."""

import io
import sys
from collections.abc import Callable
from types import TracebackType

import click

from clients.printing import printable


class Terminal:
    """Where the command line writes; `failures` counts what it was told has failed.

    total: called where a bar is shown, for the number of images.
    """

    def __init__(self, total: Callable[[], int]) -> None:
        self.failures = 0
        if isinstance(sys.stdout, io.TextIOWrapper):  # a file's name need not be text in the terminal's encoding
            sys.stdout.reconfigure(errors="backslashreplace")
        self._bar = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=total(), unit=" images", file=sys.stderr, delay=1, leave=False, dynamic_ncols=True)

    def answered(self, lines: str) -> None:
        """Print what belongs to one image."""
        self.print(lines)
        self._advance()

    def failed(self, name: str, what: str) -> None:
        """Name an image that could not be classified, or a path in which there is none."""
        self.failures += 1
        text = what if what.startswith(name) else f"{name}: {what.removeprefix('image: ')}"
        self.print(f"Error: {printable(text)}", err=True)
        self._advance()

    def noted(self, name: str, what: str) -> None:
        """Say what is no failure."""
        self.print(f"Note: {printable(name)}: {what}", err=True)

    def print(self, lines: str, err: bool = False) -> None:
        stream = sys.stderr if err else sys.stdout
        if self._bar is not None and stream.isatty():  # the bar stands there too and must make room
            self._bar.write(lines, file=stream)
        else:
            click.echo(lines, err=err)

    def _advance(self) -> None:
        if self._bar is not None:
            self._bar.update()

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
