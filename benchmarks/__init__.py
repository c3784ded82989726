"""Measures every stage against PyTorch and the CNN."""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else ONNX Runtime reports to Microsoft; read when imported
