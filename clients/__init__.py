"""Preprocessing, clients of the server, command line, page. No torch."""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read at import; else ONNX Runtime reports to Microsoft
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # else gRPC prints what it also raises
