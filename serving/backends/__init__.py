"""Triton backends in Python, for servers that lack the native backends of ONNX Runtime and OpenVINO."""
