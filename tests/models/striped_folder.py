"""A folder of three classes of pictures."""

from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("cross stripes", "stripes", "étoffe")


def striped(label: int, number: int) -> Image.Image:
    """(30, 40): stripes across, along, or plain grey."""
    field = np.zeros((30, 40), np.uint8)
    if label == 0:
        field[number % 5 :: 5] = 255
    elif label == 1:
        field[:, number % 5 :: 5] = 255
    else:
        field += 100 + number
    return Image.fromarray(field)


def striped_folder(place: Path) -> Path:
    """20 pictures a class, beside a text and a hidden folder."""
    for label, name in enumerate(CLASSES):
        (place / name).mkdir(parents=True)
        for number in range(20):
            striped(label, number).save(place / name / f"{number:02d}.png")
        (place / name / "notes.txt").write_text("no picture")
    (place / ".hidden").mkdir()
    return place


def written_pictures(folder: Path, images: np.ndarray) -> Path:
    """Images (n, C, H, W) as 000.png, 001.png, ..., whose names say nothing about classes."""
    folder.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(folder / f"{number:03}.png")
    return folder
