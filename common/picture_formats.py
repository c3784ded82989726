"""Which picture files training and clients read. The reading itself is in common/pictures.py, which needs Pillow."""

# Pillow's other decoders are rarely repaired; PostScript's starts Ghostscript.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
SUFFIXES = frozenset(
    (".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
)
MOST_PIXELS = 89_478_485  # of a picture; Pillow warns of more
DECODED_SIDE = 1024  # pixels; JPEG is decoded as small as this allows


class UnreadablePicture(Exception):
    """The file is no picture, or none that is read here. The message names the file."""
