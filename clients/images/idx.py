"""Reads idx files of images and of labels, with InvalidImage as the error."""

from clients.errors import InvalidImage
from common import idx


class IdxFile(idx.IdxFile):
    """As common.idx.IdxFile, but it raises InvalidImage."""

    error = InvalidImage
