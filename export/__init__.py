"""Checkpoint to served artifact: exact rewrites, ONNX, the Triton model repository."""
