"""How pictures are decoded, alike in training and by clients."""

# Pillow's other decoders are rarely repaired; PostScript's starts Ghostscript.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
DECODED_SIDE = 1024  # pixels; JPEG is decoded as small as this allows
