"""Engines beside ONNX Runtime: OpenVINO and TensorRT."""
