"""A folder with a sub-folder of pictures per class, as torchvision's ImageFolder.

In: the folder and the images' size. Out: a `Dataset`, prepared as clients prepare photos; or DataError.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from models.config import ModelConfig
from models.data.dataset import DataError, Dataset

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"))
SIDE = 28  # pixels
PATCHES = 4  # per side, as in the published networks
MAX_PIXELS = 1 << 26  # of a picture: a small file may claim any size
GREY_MODES = frozenset(("1", "L", "LA"))
COLOUR_MODES = frozenset(("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV"))


def load_folder(folder: Path, size: tuple[int, int] = (SIDE, SIDE), held_out: int = 0) -> Dataset:
    """`size`: height and width; `held_out`: pictures of the test part, by default a fifth.

    Each class has its share of both parts, always the same pictures. Grey if all pictures are, else RGB.
    """
    if not str(folder).isprintable():  # it names the dataset in checkpoints
        raise DataError(f"{folder}: expected a path of printable characters, found {str(folder)!r}")
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(classes) < 2:
        raise DataError(
            f"{folder}: expected a sub-folder of pictures for each of two classes or more, found {len(classes)}"
        )
    files = [(path, label) for label, place in enumerate(classes) for path in pictures(place)]
    channels = 1 if all(_is_grey(path) for path, _ in files) else 3
    images = np.stack([read_picture(path, channels, size) for path, _ in files])  # (n, C, H, W)
    labels = np.array([label for _, label in files], np.int64)
    names = tuple(place.name for place in classes)
    tested = _tested(folder, labels, names, held_out or max(len(names), len(files) // 5))
    return Dataset(
        name=str(folder),
        train_images=images[~tested],
        train_labels=labels[~tested],
        test_images=images[tested],
        test_labels=labels[tested],
        labels=names,
        preprocessing="photo",
        patch_size=(max(1, size[0] // PATCHES), max(1, size[1] // PATCHES)),
        load_options=f"--image-size {size[0]} {size[1]}" + (f" --hold-out {held_out}" if held_out else ""),
    )


def _tested(folder: Path, labels: NDArray[np.int64], names: tuple[str, ...], count: int) -> NDArray[np.bool_]:
    """`count` pictures to test on, bool (n,): of each class its share, at least one, and one is left to train on."""
    sizes = np.bincount(labels)  # (classes,)
    if sizes.min() < 2:
        raise DataError(f"{folder / names[sizes.argmin()]}: expected two pictures or more, found {sizes.min()}")
    total, classes = len(labels), len(names)
    if not classes <= count <= total - classes:
        limits = f"{classes} to {total - classes} of {total} pictures"
        raise DataError(f"{folder}: expected to hold out {limits}, of {classes} classes, found {count}")
    ideal = count * sizes / total
    shares = np.clip(ideal.astype(np.int64), 1, sizes - 1)
    while (left := count - shares.sum()) != 0:  # to the class that lacks most, from the class that has most too many
        step = 1 if left > 0 else -1
        free = shares < sizes - 1 if left > 0 else shares > 1
        shares[np.where(free, step * (ideal - shares), -np.inf).argmax()] += step
    random, tested = np.random.default_rng(0), np.zeros(total, bool)
    for label, share in enumerate(shares):
        tested[random.permutation(np.flatnonzero(labels == label))[:share]] = True
    return tested


def load_unlabelled(folder: Path, config: ModelConfig, fewest: int, most: int) -> NDArray[np.uint8]:
    """Pictures as a model reads them, uint8 (n, C, H, W); of more than `most`, an even part by name.

    Models of ink need pictures of their own size, light on black.
    """
    paths = pictures(folder)
    if len(paths) < fewest:
        raise DataError(f"{folder}: expected at least {fewest} pictures, found {len(paths)}")
    chosen = paths[:: -(-len(paths) // most)]
    if config.preprocessing == "ink":
        for path in chosen:
            _check_size(path, config.image_size)
    return np.stack([read_picture(path, config.channels, config.image_size) for path in chosen])


def _check_size(path: Path, size: tuple[int, int]) -> None:
    with _opened(path) as picture:
        if picture.size != (size[1], size[0]):
            found = f"{picture.width} x {picture.height}"
            raise DataError(f"{path}: expected the model's {size[1]} x {size[0]} pixels, light on black, found {found}")


def pictures(folder: Path) -> list[Path]:
    there = (path for path in folder.iterdir() if not path.name.startswith("."))  # macOS adds ._NAME.png
    paths = sorted(path for path in there if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise DataError(f"{folder}: expected pictures ({', '.join(sorted(SUFFIXES))}), found none")
    return paths


def read_picture(path: Path, channels: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    """The middle of a picture, resized to `size` (height, width): uint8 (channels, H, W)."""
    with _opened(path) as picture:
        upright = ImageOps.exif_transpose(picture)
        if upright.has_transparency_data:
            layered = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", layered.size, "white"), layered)
        fitted = ImageOps.fit(upright.convert("L" if channels == 1 else "RGB"), (size[1], size[0]))
    pixels = np.asarray(fitted).reshape(*size, channels)  # (H, W, C)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))  # (C, H, W)


def _is_grey(path: Path) -> bool:
    with _opened(path) as picture:
        return picture.mode in GREY_MODES


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as picture:
                if picture.width * picture.height > MAX_PIXELS:
                    size = f"{picture.width} x {picture.height}"
                    raise DataError(f"{path}: expected up to {MAX_PIXELS} pixels, found {size}")
                if picture.mode not in GREY_MODES | COLOUR_MODES:
                    raise DataError(f"{path}: expected 8 bits a channel, found the mode {picture.mode}")
                yield picture
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path}: expected a picture, found {type(error).__name__}: {error}") from error
