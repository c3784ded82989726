"""Measurements: every stage against the PyTorch baseline and the CNN."""
