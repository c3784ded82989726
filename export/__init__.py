"""Checkpoint to served artifact: exact rewrites, ONNX, the Triton model repository."""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else ONNX Runtime reports to Microsoft; read when imported
