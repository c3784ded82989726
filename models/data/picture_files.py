"""The picture files of a folder's classes.

In: a folder with a sub-folder of pictures per class, or with such folders `train` and `test` or `val`. Out: paths and
labels by part, and what was left out; or DataError.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

from common.decoding import SUFFIXES
from common.files import sha256
from models.data.dataset import DataError

TEST_NAMES, HELD_OUT_NAMES = ("test", "val", "valid", "validation"), ("val", "valid", "validation")
PART_NAMES = frozenset(("train", "training", "testing", *TEST_NAMES))
DIGEST_CHARACTERS = 12  # 48 bits tell 100,000 pictures apart; checkpoints stay small


@dataclass(frozen=True)
class PictureFile:
    path: Path
    label: int

    def digest(self) -> str:
        """The start of the content's sha256. Raises DataError."""
        try:
            return sha256(self.path)[:DIGEST_CHARACTERS]
        except OSError as error:
            raise DataError(f"{self.path}: expected a picture, found {error.strerror}") from error


@dataclass(frozen=True)
class PictureFiles:
    """The parts of a folder: in a folder of only one part `test` and `held_out` are empty until models/data/split.py
    has split it. `notes`: what was left out.
    """

    folder: Path
    classes: tuple[str, ...]
    train: Sequence[PictureFile]
    test: Sequence[PictureFile] = ()
    held_out: Sequence[PictureFile] = ()
    notes: tuple[str, ...] = ()


def find_files(folder: Path) -> PictureFiles:
    """Each class's files, sorted by name, with those of its sub-folders. Raises DataError."""
    parts = _parts(folder)
    names = {part: tuple(place.name for place in _folders(place)) for part, place in parts.items()}
    classes = names["train"]
    if len(classes) < 2:
        expected = "expected a sub-folder of pictures for each of two classes or more"
        raise DataError(f"{parts['train']}: {expected}, found {len(classes)}{_instead(parts['train'])}")
    for name in classes:
        if not (name.isprintable() and name.strip()):
            raise DataError(f"{parts['train']}: expected sub-folders with printable names, found {name!r}; rename it")
    for part, found in names.items():
        if found != classes:
            differ = sorted(set(found) ^ set(classes))
            shown = ", ".join(map(ascii, differ) if _told_apart(differ) is ascii else differ)
            raise DataError(f"{parts[part]}: expected the classes of {parts['train']}, found a difference in {shown}")
    files = {
        part: [
            PictureFile(path, label)
            for label, name in enumerate(classes)
            for path in pictures(place / name, below=True)
        ]
        for part, place in parts.items()
    }
    notes = _notes(folder, [place / name for place in parts.values() for name in classes])
    return PictureFiles(folder, classes, **files, notes=notes)


def _instead(folder: Path) -> str:
    """Names the folder below that holds the classes, if each folder on the way there has no other beside it; else
    files that should lie in folders of classes.
    """
    inner = folder
    while len(below := _folders(inner)) == 1:
        inner = below[0]
    if below:
        return f"; name {inner}, which holds {len(below)} folders"
    beside = sorted(_files(folder, below=False))
    return f" and {len(beside)} files, such as {shown(beside[0].name)}" if beside else ""


def _parts(folder: Path) -> dict[str, Path]:
    """Part -> folder: `train`, and `test` and `held_out` if the folder has them. Raises DataError."""
    names = {place.name for place in _folders(folder)}
    tests = [name for name in TEST_NAMES if name in names]
    are_parts = "train" in names and tests and not names - {"train", *TEST_NAMES}
    if not are_parts or not all(_folders(folder / name) for name in names):
        _expect_classes(folder, names)
        return {"train": folder}
    if (len(tests) > 1 and tests[0] != "test") or len(tests) > 2:
        raise DataError(
            f"{folder}: expected train, test and one of {', '.join(HELD_OUT_NAMES)}, found {', '.join(tests)}"
        )
    parts = {"train": folder / "train", "test": folder / tests[0]}
    return parts | ({"held_out": folder / tests[1]} if len(tests) > 1 else {})


def _expect_classes(folder: Path, names: Collection[str]) -> None:
    """Raises DataError for parts that would be read as classes.

    Such are `Train` and `Test`, a `test` without sub-folders, and folders of the same sub-folders under any names;
    folders that all have names of parts, too, if they hold pictures alone; `train` and `test` below classes; and a
    folder of its neighbours' names.
    """
    below = {name: {place.name for place in _folders(folder / name)} for name in names}
    parted = sorted(name for name in names if "train" in below[name] and below[name] & {*TEST_NAMES})
    if parted and len(names) > 1:
        found = f"{parted[0]}/train; or name {folder / parted[0]}"
        raise DataError(f"{folder}: expected parts above the classes, as train/{parted[0]}, found {found}")
    parts = {name for name in names if name.casefold() in PART_NAMES}
    for name in (name for name in names if len(below[name]) > 1):
        alike = {other for other in names if len(below[other] & below[name]) > 1}
        if name.casefold().startswith("train") or (len(alike) > 1 and not _own_pictures(folder / name)):
            parts |= alike
    if len(parts) > 1 and (parts == set(names) or any(len(below[name]) > 1 for name in parts)):
        other = (
            f"or name a folder of classes, such as {folder / max(parts)}" if below[max(parts)] else "or rename a class"
        )
        if not any(name.casefold() in PART_NAMES or name.casefold().startswith("train") for name in parts):
            other += "; if these are the classes, move their pictures out of the sub-folders"
        raise DataError(
            f"{folder}: expected train, and test or val, each with the same classes' sub-folders, "
            f"found {', '.join(sorted(names))}; {other}"
        )
    for name in sorted(names):
        if len(shared := sorted(below[name] & {*names})) > 1:
            raise DataError(
                f"{folder}: expected classes alone, found {name} with sub-folders of its neighbours' names, "
                f"{', '.join(shared)}; move it elsewhere, or the others into a folder train"
            )


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not _is_hidden(path))


def _is_hidden(path: Path) -> bool:
    """macOS adds ._NAME.png to a folder and __MACOSX to an archive."""
    return path.name.startswith(".") or path.name == "__MACOSX"


def pictures(folder: Path, below: bool = False) -> list[Path]:
    """The picture files of a folder, sorted; `below`: those of sub-folders too. Raises DataError if there are none."""
    paths = sorted(path for path in _files(folder, below) if _is_picture(path))
    if not paths:
        found = "only links to folders" if below and any(_linked(folder)) else _kinds(_files(folder, below)) or "none"
        raise DataError(f"{folder}: expected pictures ({', '.join(sorted(SUFFIXES))}), found {found}")
    return paths


def _own_pictures(folder: Path) -> bool:
    return any(map(_is_picture, _files(folder, below=False)))


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def _files(folder: Path, below: bool) -> Iterable[Path]:
    """Without hidden files and folders."""
    for path in folder.iterdir():
        if _is_hidden(path):
            continue
        if not path.is_dir():
            if path.is_file() or not path.exists():  # a pipe would wait; a broken link is named when it is read
                yield path
        elif below and not path.is_symlink():  # a link may lead back
            yield from _files(path, below)


def _linked(folder: Path) -> Iterable[Path]:
    """The links to folders below a class, which `_files` does not follow."""
    for path in folder.iterdir():
        if path.is_dir() and not _is_hidden(path):
            yield from [path] if path.is_symlink() else _linked(path)


def _notes(folder: Path, places: Sequence[Path]) -> tuple[str, ...]:
    files = [(place, path) for place in places for path in _files(place, below=True)]
    deeper = Counter(path.parent for place, path in files if path.parent != place and _is_picture(path))
    notes = []
    if look_alike := _look_alike({place.name for place in places}):
        notes.append(f"Classes of nearly one name: {look_alike}; if they are the same, move their pictures together")
    notes += _other_kinds(path for _, path in files)
    beside = list(_files(folder, below=False))
    if beside:
        named = shown(beside[0].name)
        notes.append(f"Left out, as they are in no class: {len(beside)} files beside the classes, such as {named}")
    if hidden := sorted(path.name for path in folder.iterdir() if path.is_dir() and _is_hidden(path)):
        notes.append(f"Left out, as hidden: {', '.join(map(shown, hidden))}")
    if linked := sorted(link for place in places for link in _linked(place)):
        first = shown(str(linked[0].relative_to(folder)))
        notes.append(f"Left out, as links to folders: {len(linked)} in the classes, such as {first}")
    if deeper:
        first = shown(str(min(deeper).relative_to(folder)))
        notes.append(f"Read from sub-folders of classes: {deeper.total()} pictures in {len(deeper)}, such as {first}")
    return tuple(notes)


def left_out(folder: Path) -> tuple[str, ...]:
    """Notes of a folder without classes: sub-folders and files of no picture."""
    notes = _other_kinds(_files(folder, below=False))
    if folders := _folders(folder):
        notes.append(f"Left out, as folders: {len(folders)}, such as {shown(folders[0].name)}")
    return tuple(notes)


def _other_kinds(paths: Iterable[Path]) -> list[str]:
    others = _kinds(paths)
    return [f"Left out, as their suffix is of no picture that is read here: {others}"] if others else []


def _look_alike(classes: Collection[str]) -> str:
    """Classes whose names differ in case, spaces or the encoding of an accent alone; empty if there are none."""
    spelled: dict[str, list[str]] = defaultdict(list)
    for name in sorted(classes):
        spelled[normalize("NFKC", name).casefold().strip()].append(name)
    return ", ".join(" and ".join(map(_told_apart(names), names)) for names in spelled.values() if len(names) > 1)


def _told_apart(names: Sequence[str]) -> Callable[[str], str]:
    """How each of the names is shown: escaped if some look the same."""
    return ascii if len({normalize("NFC", name) for name in names}) < len(names) else repr


def _kinds(paths: Iterable[Path]) -> str:
    """How many of the files have which suffix that is of no picture; empty if there are none."""
    others = Counter(path.suffix.lower() or "no suffix" for path in paths if not _is_picture(path))
    kinds = ", ".join(f"{suffix} {count}" for suffix, count in sorted(others.items()))
    return f"{others.total()} files ({kinds})" if others else ""


def shown(name: str) -> str:
    """A name that any terminal can show: bytes that are no text are escaped."""
    return os.fsencode(name).decode(errors="backslashreplace")
