"""The picture files of a folder's classes.

In: a folder with a sub-folder of pictures per class, or with parts (`train`, and `test` or `val`) that hold such
sub-folders. Out: paths and labels by part, and notes of the files that were left out; or DataError.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from unicodedata import normalize

from common.files import sha256
from common.picture_formats import SUFFIXES, has_picture_suffix
from common.plurals import counted
from common.printable import JOINERS, is_printable
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
    """The parts of a folder. `test` and `held_out` are empty for a folder without parts, until models/data/split.py has
    split it. `notes`: lines for the user, such as which files were left out.
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
        raise DataError(f"{parts['train']}: {expected}, found {len(classes)}{_hint(parts['train'])}")
    for name in classes:
        if not (is_printable(name) and name.strip()):
            raise DataError(f"{parts['train']}: expected sub-folders with printable names, found {name!r}; rename it")
    for part, folders in names.items():
        if folders != classes:
            differing = sorted(set(folders) ^ set(classes))
            listed = ", ".join(map(ascii, differing) if _spelling(differing) is ascii else differing)
            raise DataError(f"{parts[part]}: expected the classes of {parts['train']}, found a difference in {listed}")
    files = {
        part: [
            PictureFile(path, label)
            for label, name in enumerate(classes)
            for path in pictures(place / name, recursive=True)
        ]
        for part, place in parts.items()
    }
    notes = _notes(folder, [place / name for place in parts.values() for name in classes])
    return PictureFiles(folder, classes, **files, notes=notes)


def _hint(folder: Path) -> str:
    """What a folder without classes holds instead, for an error: the only sub-folder with classes in it, or files."""
    inner = folder
    while len(sub_folders := _folders(inner)) == 1:
        inner = sub_folders[0]
    if sub_folders:
        return f"; name {inner}, which holds {len(sub_folders)} folders"
    files = sorted(_files(folder, recursive=False))
    return f" and {counted(len(files), 'file')}, such as {shown(files[0].name)}" if files else ""


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
    """Raises DataError where sub-folders that are parts would be read as classes.

    - A class has sub-folders `train` and `test`: the parts stand below the classes.
    - Several sub-folders share their own sub-folders' names, as `Train` and `Test` with the same classes in each.
    - All sub-folders have names of parts and hold only pictures.
    - A sub-folder has sub-folders with its neighbours' names, as a copy of the dataset in itself.
    """
    inner = {name: {place.name for place in _folders(folder / name)} for name in names}
    with_parts = sorted(name for name in names if "train" in inner[name] and inner[name] & {*TEST_NAMES})
    if with_parts and len(names) > 1:
        place = f"{with_parts[0]}/train; or name {folder / with_parts[0]}"
        raise DataError(f"{folder}: expected parts above the classes, as train/{with_parts[0]}, found {place}")
    parts = {name for name in names if name.casefold() in PART_NAMES}
    for name in (name for name in names if len(inner[name]) > 1):
        similar = {other for other in names if len(inner[other] & inner[name]) > 1}
        if name.casefold().startswith("train") or (len(similar) > 1 and not _has_pictures(folder / name)):
            parts |= similar
    if len(parts) > 1 and (parts == set(names) or any(len(inner[name]) > 1 for name in parts)):
        advice = (
            f"or name a folder of classes, such as {folder / max(parts)}" if inner[max(parts)] else "or rename a class"
        )
        if not any(name.casefold() in PART_NAMES or name.casefold().startswith("train") for name in parts):
            advice += "; if these are the classes, move their pictures out of the sub-folders"
        raise DataError(
            f"{folder}: expected train, and test or val, each with the same classes' sub-folders, "
            f"found {', '.join(sorted(names))}; {advice}"
        )
    for name in sorted(names):
        if len(shared := sorted(inner[name] & {*names})) > 1:
            raise DataError(
                f"{folder}: expected classes alone, found {name} with sub-folders of its neighbours' names, "
                f"{', '.join(shared)}; move it elsewhere, or the others into a folder train"
            )


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not _is_hidden(path))


def _is_hidden(path: Path) -> bool:
    """macOS adds ._NAME.png to a folder and __MACOSX to an archive."""
    return path.name.startswith(".") or path.name == "__MACOSX"


def pictures(folder: Path, recursive: bool = False) -> list[Path]:
    """The picture files of a folder, sorted; with `recursive` those of sub-folders too. Raises DataError for none."""
    files = list(_files(folder, recursive))
    paths = sorted(path for path in files if has_picture_suffix(path.name))
    if not paths:
        linked = recursive and any(not _is_hidden(path) for path in _skipped(folder))
        folders = [] if recursive else _folders(folder)
        others = (_other_suffixes(files), counted(len(folders), "folder") if folders else "")
        found = "only links to folders" if linked else " and ".join(filter(None, others)) or "none"
        raise DataError(f"{folder}: expected pictures ({', '.join(sorted(SUFFIXES))}), found {found}")
    return paths


def _has_pictures(folder: Path) -> bool:
    return any(has_picture_suffix(path.name) for path in _files(folder, recursive=False))


def _files(folder: Path, recursive: bool) -> Iterable[Path]:
    """The files of a folder, and with `recursive` of its sub-folders; neither hidden files nor hidden folders."""
    for path in folder.iterdir():
        if _is_hidden(path):
            continue
        if not path.is_dir():
            if path.is_file() or not path.exists():  # a pipe would wait; a broken link is named when it is read
                yield path
        elif recursive and not path.is_symlink():  # a link may lead to a folder above it
            yield from _files(path, recursive)


def _skipped(folder: Path) -> Iterable[Path]:
    """What may hold pictures and is not read by `_files`: links to folders, hidden folders and hidden pictures."""
    for path in folder.iterdir():
        if _is_hidden(path):
            yield from [path] if path.is_dir() or has_picture_suffix(path.name) else ()
        elif path.is_dir():
            yield from [path] if path.is_symlink() else _skipped(path)


def _notes(folder: Path, places: Sequence[Path]) -> tuple[str, ...]:
    """Lines for the user on a dataset's `folder`; `places`: the folders of the classes in all parts."""
    files = [(place, path) for place in places for path in _files(place, recursive=True)]
    deeper = Counter(path.parent for place, path in files if path.parent != place and has_picture_suffix(path.name))
    notes = []
    if similar := _similar_names({place.name for place in places}):
        notes.append(f"Classes of nearly one name: {similar}; if they are the same, move their pictures together")
    notes += _note_of_suffixes(path for _, path in files)
    if outside := list(_files(folder, recursive=False)):
        first = shown(outside[0].name)
        number = counted(len(outside), "file")
        notes.append(f"Left out, as they are in no class: {number} beside the classes, such as {first}")
    around = {folder, *(place.parent for place in places)}
    hidden = sorted(path for place in around for path in place.iterdir() if path.is_dir() and _is_hidden(path))
    if hidden:
        notes.append(f"Left out, as hidden: {', '.join(shown(str(path.relative_to(folder))) for path in hidden)}")
    skipped = sorted(path for place in places for path in _skipped(place))
    for why, paths in (
        ("hidden", [path for path in skipped if _is_hidden(path)]),
        ("links to folders", [path for path in skipped if not _is_hidden(path)]),
    ):
        if paths:
            first = shown(str(paths[0].relative_to(folder)))
            notes.append(f"Left out, as {why}: {len(paths)} in the classes, such as {first}")
    if deeper:
        first = shown(str(min(deeper).relative_to(folder)))
        number = counted(deeper.total(), "picture")
        notes.append(f"Read from sub-folders of classes: {number} in {len(deeper)}, such as {first}")
    return tuple(notes)


def left_out(folder: Path) -> tuple[str, ...]:
    """Lines for the user on a folder of pictures without classes: which sub-folders and files are not read."""
    notes = _note_of_suffixes(_files(folder, recursive=False))
    if folders := _folders(folder):
        notes.append(f"Left out, as folders: {len(folders)}, such as {shown(folders[0].name)}")
    return tuple(notes)


def _note_of_suffixes(paths: Iterable[Path]) -> list[str]:
    others = _other_suffixes(paths)
    return [f"Left out, as their suffix is of no picture that is read here: {others}"] if others else []


def _similar_names(classes: Collection[str]) -> str:
    """Classes whose names differ in case, spaces, joiners or the encoding of an accent alone; empty without such."""
    spelled: dict[str, list[str]] = defaultdict(list)
    for name in sorted(classes):
        letters = "".join(char for char in normalize("NFKC", name).casefold() if char not in JOINERS)
        spelled[letters.strip()].append(name)
    return ", ".join(" and ".join(map(_spelling(names), names)) for names in spelled.values() if len(names) > 1)


def _spelling(names: Sequence[str]) -> Callable[[str], str]:
    """How to show the names: `ascii`, which escapes accents, if two names would look the same; else `repr`."""
    return ascii if len({normalize("NFC", name) for name in names}) < len(names) else repr


def _other_suffixes(paths: Iterable[Path]) -> str:
    """The number of files that are no pictures, by suffix, such as "3 files (.txt 3)"; empty if there are none."""
    others = Counter(path.suffix.lower() or "no suffix" for path in paths if not has_picture_suffix(path.name))
    kinds = ", ".join(f"{suffix} {count}" for suffix, count in sorted(others.items()))
    return f"{counted(others.total(), 'file')} ({kinds})" if others else ""


def shown(name: str) -> str:
    """A name that any terminal can show: bytes that are no text are escaped."""
    return os.fsencode(name).decode(errors="backslashreplace")
