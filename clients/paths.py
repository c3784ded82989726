"""Paths in, files out, one at a time and in the order of the paths, so that no number of them fills the memory.

A path is a file, a folder, `-` for standard input, or a pattern such as `scans/*.png` that is no file's own name.
Of a folder come the files in it and below whose suffix is an image's, hidden ones left out; a pattern may match
folders too. Names are sorted, folder by folder, unless there are so many that sorting would take memory.
"""

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TypeVar

STANDARD_INPUT = "-"
SORTED = 50_000  # names at most; more come in the order of the file system
_SUFFIXES = {".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}

T = TypeVar("T")
Report = Callable[[str, str], None]  # takes a path, and what there is to say of it


def expand(paths: Sequence[str], failed: Report, noted: Report) -> Iterator[str]:
    """The files that the paths stand for; a path that is nothing comes too, so that reading it fails.

    failed: is told of folders and patterns in which there is nothing to read.
    noted:  is told of folders of which files are left out.
    """
    for path in paths:
        if path == STANDARD_INPUT or os.path.lexists(path) or not glob.has_magic(path):
            matches: Iterable[str] = [path]
        else:
            matches = _in_order(glob.iglob(path, recursive=True), key=str)  # noqa: PTH207 (Path.glob changes the names)
            first = next(matches, None)
            if first is None:
                failed(path, "expected files of such names, found none")
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
    """The images in a folder, then those in the folders below it; links to folders are not followed."""
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
        noted(folder, f"files left out, for they have no image's suffix: {left_out}")


def _in_order(items: Iterator[T], key: Callable[[T], str]) -> Iterator[T]:
    """The items sorted, if they are not too many for that."""
    first = list(islice(items, SORTED))
    if len(first) < SORTED:
        first.sort(key=key)
    yield from first
    yield from items
