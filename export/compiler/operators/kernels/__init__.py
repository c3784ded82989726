"""Kernels in float64 for operators that onnx's reference implementation computes slowly, wrongly or not at all.

Each public class of these modules is the kernel of the operator of its name; the operator's inputs and attributes are
the arguments of its `_run`. No torch: `vitbn rewrite` runs without it.
"""

from __future__ import annotations

from onnx.reference.op_run import OpRun

from export.compiler.operators.kernels import (
    activations,
    attention,
    conv_and_pool,
    indexing,
    norms,
    recurrent,
    resampling,
)

KERNELS: list[type[OpRun]] = [
    kernel
    for module in (activations, attention, conv_and_pool, indexing, norms, recurrent, resampling)
    for name, kernel in vars(module).items()
    if isinstance(kernel, type) and kernel.__module__ == module.__name__ and not name.startswith("_")
    if issubclass(kernel, OpRun)
]
