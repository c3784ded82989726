"""Checkpoint files: read, checked, written, shipped."""
