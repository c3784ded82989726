"""Makes any ONNX classifier of pictures a version that clients can ask like the networks of this project."""
