"""Formats of picture files that training and clients read, and limits; common/pictures.py reads the files."""

from pathlib import PurePath

# No others: Pillow's other decoders are rarely maintained, and its PostScript decoder starts Ghostscript.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
SUFFIXES = frozenset(
    (".avif", ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
)
MOST_PIXELS = 89_478_485  # in a picture; above this Pillow warns
DECODED_SIDE = 1024  # pixels; a JPEG is decoded at the smallest reduced size with sides of at least this


def has_picture_suffix(name: str) -> bool:
    return PurePath(name).suffix.lower() in SUFFIXES


class UnreadablePicture(Exception):
    """The file is no picture of a supported format. The message names the file."""
