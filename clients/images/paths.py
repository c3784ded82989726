"""Expands paths to the names of image files, in the order of the paths.

A path is a file, a folder, `-` for standard input, or a pattern such as `scans/*.png`, which may match folders. A
folder stands for the image files in it and its sub-folders, by suffix, without hidden files.
"""

import glob
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from common.picture_formats import has_picture_suffix

STANDARD_INPUT = "-"
SORTED = 50_000  # names; further names come unsorted, to bound memory

T = TypeVar("T")
Report = Callable[[str, str], None]  # path, message


def expand(paths: Sequence[str], on_failure: Report, on_note: Report) -> Iterator[str]:
    """Yields file names. A missing path is yielded too: the attempt to read it tells the reason.

    on_failure: called for folders and patterns without image files.
    on_note:    called for folders with other files.
    """
    for path in paths:
        folders: set[Path] = set()  # of this path; `**` also matches what is in them
        for match in _matches(path, on_failure):
            is_folder = os.path.isdir(match)  # noqa: PTH112 (Path.is_dir raises in a locked folder)
            if (is_folder or has_picture_suffix(match)) and not folders.isdisjoint(Path(match).parents):
                continue
            if is_folder:
                folders.add(Path(match))
                yield from _folder_images(match, on_failure, on_note)
            else:
                yield match


def _matches(path: str, on_failure: Report) -> Iterator[str]:
    """The paths that a pattern matches; a folder comes before its files."""
    if path == STANDARD_INPUT or os.path.lexists(path) or not glob.has_magic(path):
        yield path
        return
    matches = _in_order(glob.iglob(path, recursive=True), key=str)  # noqa: PTH207 (Path.glob changes the names)
    first = next(matches, None)
    if first is None:
        on_failure(path, "expected files that match, found none")
        return
    yield first
    yield from matches


def _folder_images(folder: str, on_failure: Report, on_note: Report) -> Iterator[str]:
    """The folder's images, then the images of its sub-folders. Links to folders are not followed."""
    pending, images, others = [folder], 0, 0
    while pending:
        current = pending.pop()
        sub_folders = []
        try:
            with os.scandir(current) as entries:
                for entry in _in_order(entries, key=lambda entry: entry.name):
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        sub_folders.append(entry.path)
                    elif has_picture_suffix(entry.name) and _may_be_file(entry.path):
                        images += 1
                        yield entry.path
                    else:
                        others += not os.path.isdir(entry.path)  # noqa: PTH112
        except OSError as error:
            on_failure(current, f"expected a folder, found {error.strerror}")
        pending += reversed(sub_folders)
    if not images:
        on_failure(folder, f"expected files with an image's suffix, found none (others: {others})")
    elif others:
        on_note(folder, f"files left out because their suffix is not an image's: {others}")


def _may_be_file(path: str) -> bool:
    """Also true for a link that leads nowhere or into a locked folder: the attempt to read it tells the reason."""
    return os.path.isfile(path) or not os.path.exists(path)  # noqa: PTH110, PTH113


def _in_order(items: Iterator[T], key: Callable[[T], str]) -> Iterator[T]:
    """Sorts fewer than SORTED items; more items stay as they come."""
    first = list(islice(items, SORTED))
    if len(first) < SORTED:
        first.sort(key=key)
    yield from first
    yield from items
