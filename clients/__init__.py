"""Clients of the server: preprocessing, typed clients, command line, page. No torch."""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else ONNX Runtime reports to Microsoft; read when imported
