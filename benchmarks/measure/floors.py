"""The least time of a network on a device: of its operations, of the bytes it moves, and of its launches.

Each product is one kernel with its bias, norm, GELU and residual; each attention is one kernel that writes no scores.
"""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from export.compiler.graph.constants import is_constant
from export.compiler.graph.shapes import Shapes, number
from export.compiler.operators.costs import graph_work
from export.graph import ONE_IMAGE

PRODUCTS = ("MatMul", "Gemm", "Conv")
BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "fp16-softmax": 2, "bf16": 2, "int8": 1, "fp8": 1}


@dataclass(frozen=True)
class Work:
    """`macs`, `values` of an image: multiply-accumulates, and what its kernels read and write without weights.

    `kernels` of a call.
    """

    macs: int
    values: int
    kernels: int


def work(model: ir.Model) -> Work:
    """Of a graph as the compiler leaves it."""
    shapes, values, kernels = Shapes(model.graph, ONE_IMAGE), 0, 0
    fused = {node for node in model.graph if node.op_type == "Softmax"}
    for node in model.graph:
        if node.op_type not in PRODUCTS:
            continue
        read = [value for value in node.inputs if value is not None and not is_constant(value)]
        scores, pools = _feeds(node, fused), read[0].producer() in fused
        if scores:  # the kernel reads queries and keys here, values where it pools
            values += sum(_size(shapes, value) for value in read)
            continue
        if pools:
            read = read[1:]
        values += sum(_size(shapes, value) for value in (*read, node.outputs[0]))
        kernels += 1
    return Work(graph_work(shapes).macs, values, kernels)


def _feeds(node: ir.Node, fused: Container[ir.Node]) -> bool:
    """Whether a product of queries and keys makes scores that only a Softmax reads, after a number scales them."""
    readers = [use.node for use in node.outputs[0].uses()]
    if len(readers) == 1 and readers[0].op_type in ("Mul", "Div"):
        readers = [use.node for use in readers[0].outputs[0].uses()]
    of_two = not any(is_constant(value) for value in node.inputs)
    return of_two and len(readers) == 1 and readers[0] in fused


def _size(shapes: Shapes, value: ir.Value) -> int:
    return math.prod(size for size in map(number, shapes.dims(value)) if isinstance(size, int))


def floor(work: Work, batch: int, precision: str, graph: bool, limits: Any) -> tuple[float, str]:
    """Milliseconds for a call with `batch` images, and what takes them. `graph`: kernels are nodes of a CUDA graph."""
    launch_us = limits.get("graph_node_us" if graph else "launch_us", 0.0)  # unknown on a CPU
    floors_ms = {
        "operations": 2 * work.macs * batch / gemm_gflops_per_s(precision, limits) / 1e6,
        "bytes": work.values * batch * BYTES[precision] / limits["copy_gb_per_s"] / 1e6,
        "launches": work.kernels * launch_us / 1e3,
    }
    highest = max(floors_ms, key=lambda name: floors_ms[name])
    return float(floors_ms[highest]), highest


def gemm_gflops_per_s(precision: str, limits: Any) -> float:
    rates = limits["gemm_gflops_per_s_by_precision"]
    return float(rates.get(precision.removesuffix("-softmax"), rates["fp32"]))
