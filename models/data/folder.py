"""Reads a folder with a sub-folder of pictures per class, as torchvision's ImageFolder.

In: the folder, the images' size and, to read the pictures of an earlier training again, its record. Out: a `Dataset`,
prepared as clients prepare photos; or DataError.
"""

from __future__ import annotations

import math
import os
import statistics
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from common.picture_formats import UnreadablePicture
from common.pictures import is_grey, photo_pixels, read_picture
from common.plurals import counted
from common.printable import is_printable
from models.data.dataset import DataError, Dataset, Part
from models.data.list_class_pictures import PictureFile, find_files, left_out, pictures, shown
from models.data.split import Record, record_of, split, split_again
from models.networks.config import CNN_MIN_SIDE, ModelConfig

SIDE = 28  # pixels
LONGEST = 64  # pixels of the longer side; the CNN's work grows with it
FORM_SHOWN = 50  # pictures whose form is that of all
PATCHES = 7  # the usual number of patches per side
FEWEST_PATCHES, MOST_PATCHES = 3, 20  # per side; more take over 30 times the work of 7

FRAMES = "Read of several frames or pages, the first"
WHITE = "All white, as transparent pixels become white; give them a background"
CUT = "Read of the middle, less than half of the picture; an --image-size of its form reads more"

Read = TypeVar("Read")
Noted = defaultdict[str, list[Path]]  # a fact for the user -> the pictures


def load_folder(
    folder: Path, size: tuple[int, int] | None = None, held_out: int | None = None, record: Record | None = None
) -> Dataset:
    """`size`: height and width in pixels; None: of the pictures' form. `held_out`: number of training pictures kept
    apart; None: as `split` chooses. `record`: of an earlier training, whose pictures are read again, into the same
    parts. The images are grey if all pictures are, else RGB. Raises DataError, which names every picture that cannot be
    read.
    """
    if not is_printable(str(folder.absolute())):  # the path names the dataset in checkpoints
        raise DataError(f"{folder}: expected a path of printable characters, found {str(folder)!r}")
    files = find_files(folder)
    files = split_again(files, record) if record else split(files, held_out)
    parts, kept = (files.train, files.held_out, files.test), record_of(files)
    paths, noted = [file.path for part in parts for file in part], Noted(list)
    size = size or _size_of_form(paths)
    try:
        _check_memory(len(paths) * math.prod(size))
        read = _read_all(folder, paths, lambda path: _read_pixels(path, size, noted))
        images = _of_equal_channels(read)  # (n, C, H, W)
    except MemoryError as error:
        found = f"{len(paths)} of {size[0]}x{size[1]}"
        raise DataError(f"{folder}: expected pictures that fit the memory, found {found} pixels") from error
    split_images = np.split(images, np.cumsum([len(part) for part in parts[:-1]]))
    train, held, test = ((pixels, _labels(part)) for pixels, part in zip(split_images, parts, strict=True))
    return Dataset(
        name=str(folder),
        train_images=train[0],
        train_labels=train[1],
        test_images=test[0],
        test_labels=test[1],
        held=held if len(held[0]) else None,
        labels=files.classes,
        preprocessing="photo",
        patch_size=(_patch(size[0]), _patch(size[1])),
        load_options=f"--image-size {size[0]} {size[1]}" + (f" --hold-out {held_out}" if held_out else ""),
        pictures=kept,
        notes=(
            *files.notes,
            *_facts(folder, noted),
            *_copies(train, held, test, files.classes),
        ),
        test_files=tuple(str(file.path.relative_to(folder)) for file in files.test),
    )


def _size_of_form(paths: Sequence[Path]) -> tuple[int, int]:
    """Height and width in pixels: square, but long where the longer side of most pictures is over twice the shorter."""
    sizes, _ = _attempt(paths[:: -(-len(paths) // FORM_SHOWN)], lambda path: read_picture(path).size)
    form = statistics.median([width / height for width, height in sizes] or [1.0])
    if 0.5 <= form <= 2:
        return SIDE, SIDE
    long = min(LONGEST, 8 * round(CNN_MIN_SIDE * max(form, 1 / form) / 8))  # patches divide it
    return (CNN_MIN_SIDE, long) if form > 1 else (long, CNN_MIN_SIDE)


def _check_memory(needed: int) -> None:
    """Raises MemoryError for more bytes than the machine has: Linux would end the process only once they are filled."""
    if needed > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise MemoryError


def _facts(folder: Path, noted: Noted) -> tuple[str, ...]:
    return tuple(
        f"{fact}: {counted(len(paths), 'picture')}, such as {shown(str(paths[0].relative_to(folder)))}"
        for fact, paths in noted.items()
    )


def _copies(train: Part, held: Part, test: Part, classes: Sequence[str]) -> tuple[str, ...]:
    """Lines for the user on pictures of equal pixels, as the network reads them."""
    notes, earlier, names = list[str](), set[tuple[int, int]](), defaultdict[int, set[str]](set)
    for part, (images, labels) in (("", train), ("held-out", held), ("test", test)):
        pixels = [(int(label), hash(image.tobytes())) for image, label in zip(images, labels, strict=True)]
        if part and (count := sum(picture in earlier for picture in pixels)):
            fact = f"{count} of {len(pixels)} {part} pictures are copies of pictures to train on"
            notes.append(f"{fact}: the accuracy is too high; remove the copies")
        earlier |= {*pixels}
    for label, digest in earlier:
        names[digest].add(classes[label])
    if several := [sorted(each) for each in names.values() if len(each) > 1]:
        verb = "is" if len(several) == 1 else "are"
        fact = f"{counted(len(several), 'picture')} {verb} in several classes, such as in {' and '.join(min(several))}"
        notes.append(f"{fact}: no model can tell which is right; keep each in one class")
    return tuple(notes)


def _labels(files: Sequence[PictureFile]) -> NDArray[np.int64]:
    return np.array([file.label for file in files], np.int64)


def _patch(side: int) -> int:
    """The side of a patch in pixels: the divisor of the image's side with about PATCHES patches."""
    divisors = [divisor for divisor in range(1, side + 1) if side % divisor == 0]
    return min(divisors, key=lambda divisor: abs(math.log(side / divisor / PATCHES)))


def check_patches(size: tuple[int, int]) -> None:
    """Raises DataError for an image whose height or width has no divisor near PATCHES patches, such as a prime."""
    for side in size:
        if not _suits(side):
            near = [next(filter(_suits, sides), None) for sides in (range(side - 1, 0, -1), range(side + 1, 2 * side))]
            others = " or ".join(str(suitable) for suitable in near if suitable)
            raise DataError(
                f"image-size: expected a height and width that a transformer's patches divide, found {side}; "
                f"take {others}, or give --patch-size"
            )


def _suits(side: int) -> bool:
    patches = side // _patch(side)
    return patches <= MOST_PATCHES and (patches >= FEWEST_PATCHES or side <= PATCHES)


def _read_all(folder: Path, paths: Sequence[Path], read: Callable[[Path], Read]) -> list[Read]:
    """The results of `read` for all paths. Raises DataError, which names all paths that fail."""
    results, faults = _attempt(paths, read)
    if len(faults) > 1:
        raise DataError(f"{folder}: expected pictures, found {len(faults)} files that are none: {'; '.join(faults)}")
    if faults:
        raise DataError(faults[0])
    return results


def _attempt(paths: Sequence[Path], read: Callable[[Path], Read]) -> tuple[list[Read], list[str]]:
    """The results of `read`, and the faults of unreadable pictures."""
    results, faults = [], []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")  # serious faults are errors
        for path in paths:
            try:
                results.append(read(path))
            except UnreadablePicture as error:
                faults.append(str(error))
    return results, faults


def load_unlabelled(
    folder: Path, config: ModelConfig, fewest: int, most: int
) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    """Images as a model reads them, uint8 (n, C, H, W), and notes of the files that were left out.

    Of more than `most` pictures every k-th is read, in the order of their names. Models of ink need pictures of the
    model's size, light on black. Raises DataError for fewer than `fewest` pictures.
    """
    paths = pictures(folder)
    if len(paths) < fewest:
        raise DataError(f"{folder}: expected at least {fewest} pictures, found {len(paths)}")
    chosen, noted = paths[:: -(-len(paths) // most)], Noted(list)
    read = _read_all(folder, chosen, lambda path: _as_model_reads(path, config, lambda _: noted[FRAMES].append(path)))
    return np.stack(read), (*left_out(folder), *_facts(folder, noted))


def _as_model_reads(path: Path, config: ModelConfig, noted: Callable[[str], object]) -> NDArray[np.uint8]:
    is_ink, (height, width) = config.preprocessing == "ink", config.image_size
    picture = read_picture(path, noted, full_size=is_ink)
    if is_ink and picture.size != (width, height):
        found = f"{picture.width} x {picture.height}"
        raise DataError(f"{path}: expected the model's {width} x {height} pixels, light on black, found {found}")
    return photo_pixels(picture, (config.channels, height, width))


def _read_pixels(path: Path, size: tuple[int, int], noted: Noted) -> NDArray[np.uint8]:
    """The pixels of a picture: uint8 (1, H, W) if it is grey, else (3, H, W)."""
    picture = read_picture(path, lambda _: noted[FRAMES].append(path))
    stretch = picture.width * size[0] / (picture.height * size[1])
    if not 0.5 <= stretch <= 2:
        noted[CUT].append(path)
    pixels = photo_pixels(picture, (1 if is_grey(picture) else 3, *size))
    if picture.has_transparency_data and pixels.min() == 255:
        noted[WHITE].append(path)
    return pixels


def _of_equal_channels(images: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Pixels (1 or 3, H, W) -> (n, C, H, W): RGB if any picture has colours; grey ones then repeat their channel."""
    channels = max(len(image) for image in images)
    return np.stack([np.broadcast_to(image, (channels, *image.shape[1:])) for image in images])
