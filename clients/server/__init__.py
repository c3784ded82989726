"""The connection to Triton."""
