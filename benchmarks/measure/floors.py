"""The least time of a network on a device: of its operations, of the bytes it moves, and of its launches.

Each product is one kernel with its bias, norm, GELU and residual; each attention is one kernel that writes no scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from export.rewrites.absorb import AbsorbedAttention
from models.layers import Attention
from models.macs import macs_per_image
from models.registry import Network

PRODUCTS = (nn.Linear, nn.Conv2d)
ATTENTION = (Attention, AbsorbedAttention)
BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "fp16-softmax": 2, "bf16": 2, "int8": 1, "fp8": 1}


@dataclass(frozen=True)
class Work:
    """`macs`, `values` of an image: multiply-accumulates, and what its kernels read and write without weights.

    `kernels` of a call.
    """

    macs: int
    values: int
    kernels: int


def work(model: nn.Module) -> Work:
    if not isinstance(model, Network):
        raise TypeError(f"{type(model).__name__}: expected a network of this project")
    count = kernels = 0

    def product(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal count, kernels
        count += inputs[0].numel() + output.numel()
        kernels += 1

    def one_kernel(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal kernels
        kernels += 1

    def kernel(attention: nn.Module) -> Callable[..., None]:
        """Reads the projections or the tokens, and writes the input of the output projection."""

        def projected(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            nonlocal count
            count += inputs[0].numel() if module is attention.get_submodule("out") else output.numel()

        return projected

    def tokens(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal count
        count += inputs[0].numel()

    def row(attention: Attention, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Projects the query of a row, and all keys and values, in three products."""
        nonlocal count, kernels
        tokens, dim = inputs[0].shape[1:]
        rows = output.shape[1] + 2 * tokens
        count += rows * (dim + 2 * attention.heads * attention.dim_head)
        kernels += 3

    hooks: list[Any] = [
        module.register_forward_hook(product) for module in model.modules() if isinstance(module, PRODUCTS)
    ]
    for attention in (module for module in model.modules() if isinstance(module, ATTENTION)):
        parts = [part for name, part in attention.named_children() if name in ("qkv", "query", "out")]
        hooks += [part.register_forward_hook(kernel(attention)) for part in parts]
        hooks.append(attention.register_forward_hook(one_kernel))
        if isinstance(attention, AbsorbedAttention):  # the tokens are keys and values
            hooks.append(attention.register_forward_hook(tokens))
        elif attention.rows is not None:
            hooks.append(attention.register_forward_hook(row))
    first = next(model.parameters())
    try:
        with torch.inference_mode():
            model(torch.zeros(1, *model.config.input_shape, dtype=first.dtype, device=first.device))
    finally:
        for hook in hooks:
            hook.remove()
    return Work(macs_per_image(model), count, kernels)


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
