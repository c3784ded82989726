"""Reads and converts pictures as training does (common/pictures.py), with InvalidImage as the error."""

from collections.abc import Iterator
from contextlib import contextmanager

from clients.errors import InvalidImage
from common import pictures
from common.picture_formats import UnreadablePicture


@contextmanager
def _invalid_images() -> Iterator[None]:
    try:
        yield
    except UnreadablePicture as error:
        raise InvalidImage(str(error)) from error


read_image = _invalid_images()(pictures.read_picture)
photo_to_model_input = _invalid_images()(pictures.photo_pixels)
converted = _invalid_images()(pictures.converted)
