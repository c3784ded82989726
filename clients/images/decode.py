"""The reading of pictures that training shares (common/pictures.py), with the clients' error."""

from clients.errors import invalid_images
from common import pictures

read_image = invalid_images()(pictures.read_picture)
photo_to_model_input = invalid_images()(pictures.photo_pixels)
converted = invalid_images()(pictures.converted)
