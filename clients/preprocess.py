"""Any picture in, the uint8 image that a model reads out.

read_image      file -> upright picture
to_model_input  picture -> uint8 (1, 28, 28)   a digit: paper removed, scaled, centred
prepare         picture -> uint8 (C, H, W)     as the model's config says: "ink" or "photo"
"""

from clients.errors import BlankImage, ClientError, InvalidImage
from clients.images.decode import read_image
from clients.images.drawing import to_model_input
from clients.images.prepare import Preprocessing, prepare

__all__ = ["BlankImage", "ClientError", "InvalidImage", "Preprocessing", "prepare", "read_image", "to_model_input"]
