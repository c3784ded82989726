"""Splits a folder's pictures into parts for a training, and records the split in the checkpoint.

In: a folder's files. Out: the parts to train on, held out and to test on. The record names the pictures of each part by
class and content, so a resumed training, an export and a calibration use the same pictures, wherever the files are now.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from models.data.dataset import DataError
from models.data.list_class_pictures import PictureFile, PictureFiles

MANY = 2000  # training pictures; fewer are all trained on, as that gains more than choosing the epoch
PARTS = ("train", "held_out", "test")
Record = Mapping[str, Mapping[str, str]]
"""Part -> class -> the digests of the pictures' contents, separated by spaces."""


def record_of(files: PictureFiles) -> dict[str, dict[str, str]]:
    """The record of the parts. Raises DataError for a picture that cannot be read."""
    parts: dict[str, Sequence[PictureFile]] = {part: getattr(files, part) for part in PARTS}
    return {
        part: {
            name: " ".join(file.digest() for file in pictures if file.label == label)
            for label, name in enumerate(files.classes)
        }
        for part, pictures in parts.items()
    }


def split(files: PictureFiles, held_out: int | None) -> PictureFiles:
    """Splits a folder without a test part: a fifth is tested. The same files always give the same split, and every part
    the same share of each class.

    `held_out`: number of training pictures; None: a tenth if there are MANY and each class has two, else none. Raises
    DataError.
    """
    if files.held_out and held_out is not None:
        raise DataError(f"{files.folder}: expected no --hold-out, as it holds pictures apart, found {held_out}")
    train, test, held = files.train, files.test, files.held_out
    if not files.test:
        train, test = _hold_apart(files, train, max(len(files.classes), len(train) // 5))
    fewest = min(Counter(file.label for file in train).values())
    if held_out is None and not held and len(train) >= MANY and fewest > 1:
        held_out = max(len(files.classes), len(train) // 10)
    if held_out:
        train, held = _hold_apart(files, train, held_out)
    return replace(files, train=train, held_out=held, test=test)


def split_again(files: PictureFiles, record: Record) -> PictureFiles:
    """The parts of `record`; pictures that it does not name are left out. Raises DataError if a picture is missing."""
    classes = tuple(record.get("train", ()))
    if files.classes != classes:
        raise DataError(
            f"{files.folder}: expected the classes of the training, {', '.join(classes)}, "
            f"found {', '.join(files.classes)}"
        )
    by_content: dict[tuple[int, str], deque[PictureFile]] = defaultdict(deque)
    for file in (*files.train, *files.held_out, *files.test):
        by_content[file.label, file.digest()].append(file)
    parts: dict[str, list[PictureFile]] = {part: [] for part in PARTS}
    missing: Counter[tuple[str, str]] = Counter()
    for part in PARTS:
        for label, name in enumerate(classes):
            for digest in record.get(part, {}).get(name, "").split():
                if unused := by_content[label, digest]:
                    parts[part].append(unused.popleft())
                else:
                    missing[name, part] += 1
    if missing:
        others = sorted(str(file.path) for unused in by_content.values() for file in unused)
        raise DataError(_missing(files.folder, missing, others))
    return replace(files, train=parts["train"], held_out=parts["held_out"], test=parts["test"])


def _missing(folder: Path, missing: Counter[tuple[str, str]], others: Sequence[str]) -> str:
    lacks = ", ".join(f"{count} of {name} ({part.replace('_', '-')} part)" for (name, part), count in missing.items())
    new = f"; {len(others)} that the training had elsewhere or nowhere, such as {others[0]}" if others else ""
    return f"{folder}: expected the pictures of the training, found {missing.total()} changed or gone: {lacks}{new}"


def _hold_apart(
    files: PictureFiles, part: Sequence[PictureFile], count: int
) -> tuple[list[PictureFile], list[PictureFile]]:
    """Splits a part: the files that stay, and `count` files held apart.

    Every class gives its share, but at least one file, and keeps at least one. Raises DataError.
    """
    folder, classes = files.folder, files.classes
    labels = np.array([file.label for file in part], np.int64)
    sizes = np.bincount(labels, minlength=len(classes))  # (classes,)
    if sizes.min() < 2:
        raise DataError(f"{folder / classes[int(sizes.argmin())]}: expected two pictures or more, found {sizes.min()}")
    total = len(labels)
    if not len(classes) <= count <= total - len(classes):
        limits = f"{len(classes)} to {total - len(classes)} of {total} pictures"
        raise DataError(f"{folder}: expected to hold out {limits}, of {len(classes)} classes, found {count}")
    ideal = count * sizes / total
    shares = np.clip(ideal.astype(np.int64), 1, sizes - 1)
    while (left := count - shares.sum()) != 0:  # gives to the class furthest below its share, or takes from above
        step = 1 if left > 0 else -1
        free = shares < sizes - 1 if left > 0 else shares > 1
        shares[np.where(free, step * (ideal - shares), -np.inf).argmax()] += step
    random, apart = np.random.default_rng(0), np.zeros(total, bool)
    for label, share in enumerate(shares):
        apart[random.permutation(np.flatnonzero(labels == label))[:share]] = True
    return [part[i] for i in np.flatnonzero(~apart)], [part[i] for i in np.flatnonzero(apart)]
