"""Anybody's network of pictures -> a version that the clients ask as those of this project."""
