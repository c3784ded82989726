"""Paths in, file names out, in their order.

A path is a file, a folder, `-` for standard input, or a pattern such as `scans/*.png`, which may match folders. A
folder gives the image files in and below it, by suffix, without hidden files.
"""

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

STANDARD_INPUT = "-"
SORTED = 50_000  # names; more come unsorted, to bound memory
_SUFFIXES = {".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}

T = TypeVar("T")
Report = Callable[[str, str], None]  # path, message


def expand(paths: Sequence[str], failed: Report, noted: Report) -> Iterator[str]:
    """Passes missing paths on.

    failed: called for folders and patterns without image files.
    noted:  called for folders with other files.
    """
    for path in paths:
        if path == STANDARD_INPUT or os.path.lexists(path) or not glob.has_magic(path):
            matches: Iterable[str] = [path]
        else:
            matches = _in_order(glob.iglob(path, recursive=True), key=str)  # noqa: PTH207 (Path.glob changes the names)
            first = next(matches, None)
            if first is None:
                failed(path, "expected files that match, found none")
                continue
            matches = chain([first], matches)
        for match in matches:
            if Path(match).is_dir():
                yield from _folder(match, failed, noted)
            else:
                yield match


def has_image_suffix(name: str) -> bool:
    return Path(name).suffix.lower() in _SUFFIXES


def _folder(folder: str, failed: Report, noted: Report) -> Iterator[str]:
    """Own images first, then those of its folders; follows no links to folders."""
    waiting, taken, left_out = [folder], 0, 0
    while waiting:
        current = waiting.pop()
        below = []
        try:
            with os.scandir(current) as entries:
                for entry in _in_order(entries, key=lambda entry: entry.name):
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entry.path)
                    elif has_image_suffix(entry.name) and Path(entry.path).is_file():
                        taken += 1
                        yield entry.path
                    else:
                        left_out += 1
        except OSError as error:
            failed(current, f"expected a folder, found {error.strerror}")
        waiting += reversed(below)
    if not taken:
        failed(folder, f"expected files with an image's suffix, found none (others: {left_out})")
    elif left_out:
        noted(folder, f"files left out because their suffix is not an image's: {left_out}")


def _in_order(items: Iterator[T], key: Callable[[T], str]) -> Iterator[T]:
    first = list(islice(items, SORTED))
    if len(first) < SORTED:
        first.sort(key=key)
    yield from first
    yield from items
