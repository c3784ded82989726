"""Expands paths to file names, in the order of the paths.

A path is a file, a folder, `-` for standard input, or a pattern such as `scans/*.png`, which may match folders. A
folder gives the image files in and below it, by suffix, without hidden files.
"""

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from common.picture_formats import SUFFIXES

STANDARD_INPUT = "-"
SORTED = 50_000  # names; more come unsorted, to bound memory

T = TypeVar("T")
Report = Callable[[str, str], None]  # path, message


def expand(paths: Sequence[str], failed: Report, noted: Report) -> Iterator[str]:
    """Yields file names. A missing path is passed on: reading it says why it fails.

    failed: called for folders and patterns without image files.
    noted:  called for folders with other files.
    """
    for path in paths:
        given: set[Path] = set()  # folders; `**` also matches what is in them
        for match in _matches(path, failed):
            is_folder = os.path.isdir(match)  # noqa: PTH112 (Path.is_dir raises in a locked folder)
            if (is_folder or has_image_suffix(match)) and not given.isdisjoint(Path(match).parents):
                continue
            if is_folder:
                given.add(Path(match))
                yield from _folder(match, failed, noted)
            else:
                yield match


def _matches(path: str, failed: Report) -> Iterator[str]:
    """The paths that a pattern matches; a folder comes before its files."""
    if path == STANDARD_INPUT or os.path.lexists(path) or not glob.has_magic(path):
        yield path
        return
    matches = _in_order(glob.iglob(path, recursive=True), key=str)  # noqa: PTH207 (Path.glob changes the names)
    first = next(matches, None)
    if first is None:
        failed(path, "expected files that match, found none")
        return
    yield first
    yield from matches


def has_image_suffix(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES


def _folder(folder: str, failed: Report, noted: Report) -> Iterator[str]:
    """The folder's images, then those of its subfolders; links to folders are not followed."""
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
                    elif has_image_suffix(entry.name) and _may_be_file(entry.path):
                        taken += 1
                        yield entry.path
                    else:
                        left_out += not os.path.isdir(entry.path)  # noqa: PTH112
        except OSError as error:
            failed(current, f"expected a folder, found {error.strerror}")
        waiting += reversed(below)
    if not taken:
        failed(folder, f"expected files with an image's suffix, found none (others: {left_out})")
    elif left_out:
        noted(folder, f"files left out because their suffix is not an image's: {left_out}")


def _may_be_file(path: str) -> bool:
    """Also true for a link that leads nowhere or into a locked folder: reading it says why it fails."""
    return os.path.isfile(path) or not os.path.exists(path)  # noqa: PTH110, PTH113


def _in_order(items: Iterator[T], key: Callable[[T], str]) -> Iterator[T]:
    first = list(islice(items, SORTED))
    if len(first) < SORTED:
        first.sort(key=key)
    yield from first
    yield from items
