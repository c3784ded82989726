"""Engines behind Triton, where the native backend is missing."""
