import importlib
from pathlib import Path

import numpy as np
import onnx
import tritonclient.http as http
from onnx_text import parsed

WEIGHTS = np.random.default_rng(7).normal(size=(784, 10)).astype(np.float32)
TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
LABELS = [f"digit-{digit}" for digit in range(10)]

IMAGE = 'input [{ name: "image" data_type: TYPE_UINT8 dims: [1, 28, 28] }]'
LOGITS = 'output [{ name: "logits" data_type: TYPE_FP32 dims: [10] label_filename: "labels.txt" }]'
ONE_INSTANCE = "instance_group [{ kind: KIND_AUTO count: 1 }]"
# For OpenVINO: without a batch dimension of Triton.
OPEN = f'default_model_filename: "model.onnx" {IMAGE} {LOGITS}'.replace("dims: [", "dims: [-1, ")
RANGE = 'input [{ name: "x" data_type: TYPE_FP32 dims: [-1] }] output [{ name: "y" data_type: TYPE_FP32 dims: [-1] }]'


def expected_logits(images: np.ndarray) -> np.ndarray:
    """Images (N, 1, 28, 28) uint8 -> (N, 10) float32."""
    return (images.reshape(len(images), -1).astype(np.float32) / 255) @ WEIGHTS


def linear_model(batch: int | str = "batch", size: int | str = 28) -> onnx.ModelProto:
    """image uint8 (batch, 1, size, size) -> logits float32 (batch, 10) and total float32 (batch, 1)."""
    text = f"""tiny (uint8[{batch}, 1, {size}, {size}] image) => (float[{batch}, 10] logits, float[{batch}, 1] total) {{
        pixels = Cast <to = 1> (image)
        scaled = Div (pixels, white)
        flat = Reshape (scaled, flat_shape)
        logits = MatMul (flat, weights)
        total = ReduceSum <keepdims = 1> (flat, last)
    }}"""
    constants = {"white": np.float32(255), "flat_shape": np.array([-1, 784]), "last": np.array([1])}
    return parsed(text, weights=WEIGHTS, **constants)


def check_answers(
    client: http.InferenceServerClient, model: str = "linear", shape: tuple[int, ...] = (2, 1, 28, 28)
) -> None:
    images = np.random.default_rng(3).integers(0, 256, size=shape, dtype=np.uint8)
    image = http.InferInput("image", list(shape), "UINT8")
    image.set_data_from_numpy(images)
    logits = client.infer(model, [image]).as_numpy("logits")
    np.testing.assert_allclose(logits, expected_logits(images), rtol=1e-5, atol=1e-4)


def open_model() -> onnx.ModelProto:
    """image uint8 (batch, 1, size, size) -> logits float32 of the same shape."""
    ends = "(uint8[batch, 1, size, size] image) => (float[batch, 1, size, size] logits)"
    return parsed(f"tiny {ends} {{ logits = Cast <to = 1> (image) }}")


def table_model() -> onnx.ModelProto:
    """row int64 (batch, 1) -> values float32 (batch, 1, 3); a row above 3 fails its own request."""
    text = "tiny (int64[batch, 1] row) => (float[batch, 1, 3] values) { values = Gather (table, row) }"
    return parsed(text, table=TABLE)


def write_model(
    repository: Path,
    name: str = "linear",
    model: onnx.ModelProto | bytes | None = None,
    config: str = f"max_batch_size: 64 {IMAGE} {LOGITS} {ONE_INSTANCE}",
    filename: str = "model.onnx",
    backend: str = "onnxruntime",
) -> Path:
    """Writes version 1; returns its ONNX file."""
    folder = repository / name
    path = folder / "1" / filename
    path.parent.mkdir(parents=True)
    content = linear_model() if model is None else model
    path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    (folder / "labels.txt").write_text("\n".join(LABELS))
    (folder / "config.pbtxt").write_text(f'backend: "{backend}" {config}')
    return path


def write_ir(repository: Path, name: str, size: object) -> str:
    """y = 2x in OpenVINO's own format; returns the configuration."""
    openvino = importlib.import_module("openvino")
    operations = importlib.import_module("openvino.opset13")
    x = operations.parameter(openvino.PartialShape([size]), np.float32, name="x")
    x.output(0).set_names({"x"})
    y = operations.add(x, x)
    y.output(0).set_names({"y"})
    path = write_model(repository, name, config=RANGE, filename="unused", backend="openvino")
    openvino.save_model(openvino.Model([y], [x], "double"), path.with_name("model.xml"))
    return RANGE
