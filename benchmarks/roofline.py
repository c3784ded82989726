"""What the machine can reach: the rate of a large float32 matrix product, in each library that runs the contestants.

Out: functions to be timed beside the contestants, with the floating-point operations that each does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper

SIDE = 2048
Matrix = NDArray[np.float32]


def gemms(threads: int) -> dict[str, tuple[Callable[[], object], int]]:
    """A 2048 x 2048 x 2048 product in PyTorch and in ONNX Runtime, and its floating-point operations."""
    left, right = np.random.default_rng(0).standard_normal((2, SIDE, SIDE), np.float32)
    flops = 2 * SIDE**3
    return {
        f"{SIDE}^3 in PyTorch": (_in_torch(left, right, threads), flops),
        f"{SIDE}^3 in ONNX Runtime": (_in_onnxruntime(left, right, threads), flops),
    }


def _in_torch(left: Matrix, right: Matrix, threads: int) -> Callable[[], object]:
    a, b = torch.from_numpy(left), torch.from_numpy(right)

    def run() -> None:
        torch.set_num_threads(threads)
        a @ b

    return run


def _in_onnxruntime(left: Matrix, right: Matrix, threads: int) -> Callable[[], object]:
    shape = [SIDE, SIDE]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["left", "right"], ["product"])],
        "product",
        [helper.make_tensor_value_info("left", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("product", onnx.TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(right, "right")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"left": left})
