"""Reads pictures and idx files as training does (common/pictures.py, common/idx.py), with InvalidImage as the error."""

from collections.abc import Iterator
from contextlib import contextmanager

from clients.errors import InvalidImage
from common import idx, pictures
from common.picture_formats import UnreadablePicture


class IdxFile(idx.IdxFile):
    error = InvalidImage


@contextmanager
def _invalid_images() -> Iterator[None]:
    try:
        yield
    except UnreadablePicture as error:
        raise InvalidImage(str(error)) from error


read_image = _invalid_images()(pictures.read_picture)
photo_to_model_input = _invalid_images()(pictures.photo_pixels)
converted = _invalid_images()(pictures.converted)
