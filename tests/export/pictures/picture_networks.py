"""Small classifiers of pictures as ONNX files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

SIDE, CLASSES = 16, 5
FLOAT = TensorProto.FLOAT


def network(
    path: Path,
    padding: int = 0,
    channels: int = 3,
    end: str | None = None,
    first: str | None = None,
    batch: int | str = "batch",
    sides: Sequence[int | str] = (SIDE, SIDE),
    dtype: int = FLOAT,
    outputs: Sequence[str] = ("scores",),
    classes: int = CLASSES,
    channels_last: bool = False,
) -> Path:
    """`pixels` (batch, C, H, W) -> `scores`: a patch embedding, Relu, the mean of the patches, a head.

    `first`, `end`: an operator before and behind. Another output is the mean of the patches. `channels_last`: `pixels`
    is (batch, H, W, C).
    """
    rng = np.random.default_rng(0)
    kind = helper.tensor_dtype_to_np_dtype(FLOAT if dtype == TensorProto.UINT8 else dtype)
    weights = {
        "patches": rng.normal(size=(8, channels, 4, 4)),
        "patch_bias": rng.normal(size=8),
        "head": rng.normal(size=(8, classes)),
        "head_bias": rng.normal(size=classes),
    }
    held = [numpy_helper.from_array(array.astype(kind), name) for name, array in weights.items()]
    pads = [padding] * 4
    nodes = [
        *_at_first(first, dtype),
        helper.make_node("Conv", ["ready", "patches", "patch_bias"], ["conv"], strides=[4, 4], pads=pads),
        helper.make_node("Relu", ["conv"], ["relu"]),
        helper.make_node("GlobalAveragePool", ["relu"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["mean"]),
        helper.make_node("Gemm", ["mean", "head", "head_bias"], ["head_out" if end else outputs[0]]),
    ]
    if end:
        nodes.append(helper.make_node(end, ["head_out"], [outputs[0]]))
    if len(outputs) > 1:
        nodes.append(helper.make_node("Identity", ["mean"], [outputs[1]]))
    if first == "LayerNormalization":
        held.append(numpy_helper.from_array(rng.normal(size=sides[-1]).astype(kind), "gain"))
    if channels_last:
        nodes[0].input[0] = "channels_first"
        nodes.insert(0, helper.make_node("Transpose", ["pixels"], ["channels_first"], perm=[0, 3, 1, 2]))
    shape = [batch, *sides, channels] if channels_last else [batch, channels, *sides]
    given = helper.make_tensor_value_info("pixels", dtype, shape)
    of_scores = FLOAT if dtype == TensorProto.UINT8 else dtype
    made = [helper.make_tensor_value_info(name, of_scores, None) for name in outputs]
    graph = helper.make_graph(nodes, "pictures", [given], made, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def _at_first(first: str | None, dtype: int) -> list[onnx.NodeProto]:
    if dtype == TensorProto.UINT8:
        return [helper.make_node("Cast", ["pixels"], ["ready"], to=FLOAT)]
    if first == "LayerNormalization":
        return [helper.make_node(first, ["pixels", "gain"], ["ready"])]
    return [helper.make_node(first or "Identity", ["pixels"], ["ready"])]


def answers(data: bytes | Path, output: str, **feeds: NDArray[Any]) -> NDArray[Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return np.asarray(session.run([output], feeds)[0])
