"""idx files of images and of labels, for the clients."""

from clients.errors import InvalidImage
from common import idx


class IdxFile(idx.IdxFile):
    """An idx file whose errors are InvalidImage."""

    error = InvalidImage
