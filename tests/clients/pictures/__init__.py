"""Synthetic user pictures made from a digit's ink, for judging the preprocessing."""
