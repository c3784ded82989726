"""Notes on standard error, and progress: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import click

from vitbn_packages import is_ours

T = TypeVar("T")


def note(line: str) -> None:
    click.echo(line, err=True)


def one_line(error: Exception) -> str:
    """The first line of an error's message, with the error's type if the type is not the project's.

    ONNX Runtime's errors on CUDA go on with device, host and source file; that part is left out.
    """
    first = next(iter(str(error).splitlines()), "no reason given").partition(" ; GPU=")[0]
    return first if is_ours(error) else f"{type(error).__name__}: {first}"


def steps(items: Sequence[T], title: str) -> Iterable[T]:
    """The items, with progress as they are consumed."""
    from tqdm import tqdm

    if not sys.stderr.isatty():
        note(f"{title} …")
    bar: Iterable[T] = tqdm(items, desc=title, leave=False, disable=None)
    return bar


@contextmanager
def share_bar(title: str) -> Iterator[Callable[[float], object]]:
    """Yields a function that sets the share that is done, 0 to 1. Without a terminal it prints each quarter."""
    from tqdm import tqdm

    if title and not sys.stderr.isatty():
        printed = 0

        def show(share: float) -> None:
            nonlocal printed
            if (quarters := min(4, int(4 * share))) > printed:
                printed = quarters
                note(f"{title}: {25 * quarters} %")

        yield show
        return
    with tqdm(total=100, unit="%", desc=title, leave=False, disable=None if title else True) as bar:
        yield lambda share: bar.update(int(100 * share) - bar.n)
