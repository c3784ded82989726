"""Preprocessing for other programs. In: any picture. Out: the model's input, uint8 (C, H, W)."""

from clients.errors import BlankImage, ClientError, InvalidImage
from clients.images.decode import read_image
from clients.images.mnist_layout import to_model_input
from clients.images.prepare import prepare
from common.preprocessing_settings import Preprocessing

__all__ = ["BlankImage", "ClientError", "InvalidImage", "Preprocessing", "prepare", "read_image", "to_model_input"]
