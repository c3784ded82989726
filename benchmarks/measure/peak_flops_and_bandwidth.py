"""The machine's limits: the rate of a large matrix product (GEMM), and memory bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from export.interleaved import time_ns
from export.precision_table import PRECISIONS, Device, Precision

SIDE = {"cpu": 2048, "cuda": 8192}  # of the matrices; 2048 is too small to load a GPU
STREAM_FLOATS = 64 << 20  # 256 MiB an array: beyond the caches of CPUs and GPUs
REPEATS = 7
Matrix = NDArray[np.float32]


def gemms(threads: int) -> dict[str, tuple[Callable[[], object], int]]:
    """Name -> a function that computes a 2048³ float32 product on the CPU, and its floating-point operations.

    In PyTorch and in ONNX Runtime.
    """
    side = SIDE["cpu"]
    left, right = np.random.default_rng(0).standard_normal((2, side, side), np.float32)
    flops = 2 * side**3
    return {
        f"{side}^3 in PyTorch": (_in_torch(torch.from_numpy(left), torch.from_numpy(right), threads), flops),
        f"{side}^3 in ONNX Runtime": (_in_onnxruntime(left, right, threads), flops),
    }


def limits(device: Device, threads: int, precisions: tuple[Precision, ...]) -> dict[str, Any]:
    """GFLOP/s of products and GB/s of memory, JSON-ready; the fastest run counts.

    A copy reads and writes each byte; a triad (a = b + 2c) reads two bytes and writes one.
    """
    rates = {"PyTorch": _torch_gemm_rate(device, threads, "fp32")}
    if device == "cpu":
        run, flops = gemms(threads)[f"{SIDE['cpu']}^3 in ONNX Runtime"]
        rates["ONNX Runtime"] = flops / _best_ns(run)
    library = max(rates, key=lambda name: rates[name])
    lower: dict[str, float] = {
        precision: _torch_gemm_rate(device, threads, precision)
        for precision in precisions
        if precision != "fp32" and "torch" in PRECISIONS[precision].engines(device)
    }
    if device == "cuda" and "int8" in precisions:
        lower |= _int8_gemm_rate()
    a, b, c = (torch.ones(STREAM_FLOATS, device=device) for _ in range(3))
    copy_ns = _best_ns(lambda: a.copy_(b))
    triad_ns = _best_ns(lambda: torch.add(b, c, alpha=2, out=a))
    return {
        "gemm_gflops_per_s": rates[library],
        "gemm_library": f"{library}, {SIDE[device]}^3, float32",
        "gemm_gflops_per_s_by_precision": {"fp32": rates[library]} | lower,
        "copy_gb_per_s": 2 * a.nbytes / copy_ns,
        "triad_gb_per_s": 3 * a.nbytes / triad_ns,
    }


class Limits:
    """The best limits of several measurements: two cores of a shared machine may work as one for minutes."""

    def __init__(self, device: Device, threads: int, precisions: tuple[Precision, ...]) -> None:
        self._machine = device, threads, precisions
        self.best = limits(*self._machine)

    def measure_again(self) -> dict[str, Any]:
        self.best = better(self.best, limits(*self._machine))
        return self.best


def better(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The better value of each limit in two results of `limits`."""
    merged = dict(max(first, second, key=lambda limits: limits["gemm_gflops_per_s"]))
    merged |= {key: max(first[key], second[key]) for key in merged if key.endswith("_per_s")}
    rates = "gemm_gflops_per_s_by_precision"
    merged[rates] = {precision: max(rate, second[rates][precision]) for precision, rate in first[rates].items()}
    return merged


def _int8_gemm_rate() -> dict[str, float]:
    """GFLOP/s of an int8 product on a GPU; empty if PyTorch has no kernel for it."""
    side = SIDE["cuda"]
    matrix = torch.ones((side, side), dtype=torch.int8).to("cuda")
    with suppress(RuntimeError):
        return {"int8": 2 * side**3 / _best_ns(lambda: torch._int_mm(matrix, matrix.t()))}
    return {}


def _torch_gemm_rate(device: Device, threads: int, precision: Precision) -> float:
    dtype = getattr(torch, PRECISIONS[precision].dtype)
    left, right = torch.ones((2, SIDE[device], SIDE[device]), device=device).normal_().to(dtype)
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    return 2 * SIDE[device] ** 3 / _best_ns(_in_torch(left, right, threads))


def _best_ns(run: Callable[[], object]) -> int:
    """The shortest of REPEATS calls after a warm-up, on a GPU until the device has finished."""

    def run_to_the_end() -> None:
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return min([time_ns(run_to_the_end) for _ in range(1 + REPEATS)][1:])


def _in_torch(left: torch.Tensor, right: torch.Tensor, threads: int) -> Callable[[], object]:
    def run() -> None:
        torch.set_num_threads(threads)
        left @ right

    return run


def _in_onnxruntime(left: Matrix, right: Matrix, threads: int) -> Callable[[], object]:
    shape = list(left.shape)
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
