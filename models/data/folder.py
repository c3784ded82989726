"""Reads a folder with a sub-folder of pictures per class, as torchvision's ImageFolder.

In: the folder, the images' size and, to read the pictures of an earlier training again, its record. Out: a `Dataset`,
prepared as clients prepare photos; or DataError.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from common.decoding import DECODED_SIDE, FORMATS
from models.data.dataset import DataError, Dataset
from models.data.picture_files import PictureFile, find_files, pictures
from models.data.split import Record, copies, split, split_again
from models.networks.config import ModelConfig

SIDE = 28  # pixels
PATCHES = 7  # per side, about
FEWEST_PATCHES, MOST_PATCHES = 3, 20  # per side; more take over 30 times the work of 7
MAX_PIXELS = 1 << 26  # of a picture: a small file may claim any size
GREY_MODES = frozenset(("1", "L", "LA", "I", "F"))
COLOUR_MODES = frozenset(("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV"))

Read = TypeVar("Read")


def load_folder(
    folder: Path, size: tuple[int, int] = (SIDE, SIDE), held_out: int | None = None, record: Record | None = None
) -> Dataset:
    """`size`: height and width in pixels. `held_out`: training pictures kept apart; by default a tenth of many.

    `record`: reads the pictures of an earlier training, each into the same part. The images are grey if all pictures
    are, else RGB. Raises DataError, which names every picture that cannot be read.
    """
    if not str(folder.absolute()).isprintable():  # the path names the dataset in checkpoints
        raise DataError(f"{folder}: expected a path of printable characters, found {str(folder)!r}")
    files = find_files(folder)
    chosen = split_again(folder, files, record) if record else split(folder, files, held_out)
    parts, kept = (chosen.train, chosen.held_out, chosen.test), chosen.record(files.classes)
    paths = [file.path for part in parts for file in part]
    channels = 1 if all(_read_all(folder, paths, _is_grey)) else 3
    try:
        images = np.stack(_read_all(folder, paths, lambda path: read_picture(path, channels, size)))  # (n, C, H, W)
    except MemoryError as error:
        found = f"{len(paths)} of {size[0]}x{size[1]}"
        raise DataError(f"{folder}: expected pictures that fit the memory, found {found} pixels") from error
    train, held, test = np.split(images, np.cumsum([len(part) for part in parts[:-1]]))
    return Dataset(
        name=str(folder),
        train_images=train,
        train_labels=_labels(chosen.train),
        test_images=test,
        test_labels=_labels(chosen.test),
        held=(held, _labels(chosen.held_out)) if len(held) else None,
        labels=files.classes,
        preprocessing="photo",
        patch_size=(_patch(size[0]), _patch(size[1])),
        load_options=f"--image-size {size[0]} {size[1]}" + (f" --hold-out {held_out}" if held_out else ""),
        pictures=kept,
        notes=(*files.notes, *_copies(kept)),
        test_files=tuple(str(file.path.relative_to(folder)) for file in chosen.test),
    )


def _copies(record: Record) -> tuple[str, ...]:
    if not (count := copies(record)):
        return ()
    tested = sum(len(own.split()) for own in record["test"].values())
    told = f"{count} of {tested} test pictures are copies of pictures to train on"
    return (f"{told}: the accuracy is too high; remove the copies",)


def _labels(files: Sequence[PictureFile]) -> NDArray[np.int64]:
    return np.array([file.label for file in files], np.int64)


def _patch(side: int) -> int:
    """The patch's side: of the divisors of the image's side, the divisor nearest to PATCHES patches."""
    divisors = [each for each in range(1, side + 1) if side % each == 0]
    return min(divisors, key=lambda each: abs(math.log(side / each / PATCHES)))


def check_patches(size: tuple[int, int]) -> None:
    """Raises DataError for an image whose height or width has no divisor near PATCHES patches, such as a prime."""
    for side in size:
        if not _suits(side):
            near = [next(filter(_suits, sizes), None) for sizes in (range(side - 1, 0, -1), range(side + 1, 2 * side))]
            others = " or ".join(str(each) for each in near if each)
            raise DataError(
                f"image-size: expected a height and width that a transformer's patches divide, found {side}; "
                f"take {others}, or give --patch-size"
            )


def _suits(side: int) -> bool:
    patches = side // _patch(side)
    return patches <= MOST_PATCHES and (patches >= FEWEST_PATCHES or side <= PATCHES)


def _read_all(folder: Path, paths: Sequence[Path], read: Callable[[Path], Read]) -> list[Read]:
    """What `read` gives for each path. Raises DataError, which names all paths that fail."""
    done, faults = [], []
    for path in paths:
        try:
            done.append(read(path))
        except DataError as error:
            faults.append(str(error))
    if len(faults) > 1:
        raise DataError(f"{folder}: expected pictures, found {len(faults)} files that are none: {'; '.join(faults)}")
    if faults:
        raise DataError(faults[0])
    return done


def load_unlabelled(folder: Path, config: ModelConfig, fewest: int, most: int) -> NDArray[np.uint8]:
    """Pictures as a model reads them, uint8 (n, C, H, W): at most `most`, evenly spread over the sorted names.

    Models of ink need pictures of the model's size, light on black. Raises DataError for fewer than `fewest`.
    """
    paths = pictures(folder)
    if len(paths) < fewest:
        raise DataError(f"{folder}: expected at least {fewest} pictures, found {len(paths)}")
    chosen = paths[:: -(-len(paths) // most)]
    if config.preprocessing == "ink":
        for path in chosen:
            _check_size(path, config.image_size)
    return np.stack(_read_all(folder, chosen, lambda path: read_picture(path, config.channels, config.image_size)))


def _check_size(path: Path, size: tuple[int, int]) -> None:
    with _opened(path) as picture:
        if picture.size != (size[1], size[0]):
            found = f"{picture.width} x {picture.height}"
            raise DataError(f"{path}: expected the model's {size[1]} x {size[0]} pixels, light on black, found {found}")


def read_picture(path: Path, channels: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    """The middle of a picture, resized to `size` (height, width): uint8 (channels, H, W)."""
    with _opened(path) as picture:
        picture.draft(None, (DECODED_SIDE, DECODED_SIDE))
        upright = _eight_bits(ImageOps.exif_transpose(picture))
        if upright.has_transparency_data:
            layered = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered)
        fitted = ImageOps.fit(upright.convert("L" if channels == 1 else "RGB"), (size[1], size[0]))
    pixels = np.asarray(fitted).reshape(*size, channels)  # (H, W, C)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))  # (C, H, W)


def _eight_bits(picture: Image.Image) -> Image.Image:
    """Reduces grey of more than eight bits to the highest eight in use, as clients do (clients/images/grey.py)."""
    if picture.mode.startswith("I;16"):
        deep = np.asarray(picture)
        return Image.fromarray((deep >> max(0, int(deep.max()).bit_length() - 8)).astype(np.uint8))
    if picture.mode not in ("I", "F"):
        return picture
    with np.errstate(invalid="ignore"):  # converting NaN warns
        values = np.nan_to_num(np.array(picture, dtype=np.float32))
    values /= max(float(values.max()), -float(values.min())) or 1  # first: the range may overflow float32
    values -= values.min()
    values *= 255 / (float(values.max()) or 1)
    return Image.fromarray(values.astype(np.uint8))


def _is_grey(path: Path) -> bool:
    with _opened(path) as picture:
        picture.draft(None, (DECODED_SIDE, DECODED_SIDE))
        picture.load()  # so that all damaged files are named together
        return picture.mode in GREY_MODES or picture.mode.startswith("I;16")


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=FORMATS) as picture:
                if picture.width * picture.height > MAX_PIXELS:
                    size = f"{picture.width} x {picture.height}"
                    raise DataError(f"{path}: expected up to {MAX_PIXELS} pixels, found {size}")
                if picture.mode not in GREY_MODES | COLOUR_MODES and not picture.mode.startswith("I;16"):
                    raise DataError(f"{path}: expected grey or colour, found the mode {picture.mode}")
                yield picture
    except (DataError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        found = "no format that is read here" if path.stat().st_size else "an empty file"
        raise DataError(f"{path}: expected a picture, found {found}") from error
    except Exception as error:  # Pillow's decoders raise many types for damaged bytes
        raise DataError(f"{path}: expected a picture, found {type(error).__name__}: {error}") from error
