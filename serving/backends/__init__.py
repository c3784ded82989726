"""Triton backends in Python, for servers without the native backends."""
