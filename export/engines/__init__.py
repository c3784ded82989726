"""Engines other than ONNX Runtime, OpenVINO and TensorRT; and the choice of an engine by measurement."""
