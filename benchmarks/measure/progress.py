"""Progress bars on a terminal, elsewhere lines; notes on standard error."""

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


def _begin(title: str) -> None:
    if title and not sys.stderr.isatty():
        note(f"{title} …")


def one_line(error: Exception) -> str:
    first = next(iter(str(error).splitlines()), "no reason given")
    return first if is_ours(error) else f"{type(error).__name__}: {first}"


def steps(items: Sequence[T], title: str) -> Iterable[T]:
    from tqdm import tqdm

    _begin(title)
    bar: Iterable[T] = tqdm(items, desc=title, leave=False, disable=None)
    return bar


@contextmanager
def count_bar(title: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
    from tqdm import tqdm

    _begin(f"{title}: {total:,} {unit}")
    with tqdm(total=total, unit=f" {unit}", unit_scale=True, desc=title, leave=False, disable=None) as bar:
        yield bar.update


@contextmanager
def share_bar(title: str) -> Iterator[Callable[[float], object]]:
    """The yielded function sets the share, 0 to 1; without a terminal it prints a line for each quarter."""
    from tqdm import tqdm

    if title and not sys.stderr.isatty():
        told = 0

        def show(share: float) -> None:
            nonlocal told
            if (quarters := min(4, int(4 * share))) > told:
                told = quarters
                note(f"{title}: {25 * quarters} %")

        yield show
        return
    with tqdm(total=100, unit="%", desc=title, leave=False, disable=None if title else True) as bar:
        yield lambda share: bar.update(int(100 * share) - bar.n)
