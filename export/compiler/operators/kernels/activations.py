"""Element-wise functions and softmaxes in double. onnx's Erf is a Python loop, its softmaxes ignore the opset."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

from export.compiler.graph.constants import Array
from export.compiler.operators.erf import erf


class Erf(OpRun):
    def _run(self, x: Array) -> tuple[Array]:
        return (erf(x),)


class Gelu(OpRun):
    def _run(self, x: Array, approximate: str | None = None) -> tuple[Array]:
        if approximate == "tanh":
            return (x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),)
        return (x * 0.5 * (1 + erf(x / np.sqrt(2))),)


def _flattened(operator: OpRun, x: Array, axis: int | None) -> tuple[Array, int]:
    """The array and axis to normalise; before opset 13 all axes from `axis` on, by default from 1 on, count as one."""
    if operator.run_params["opsets"][""] >= 13:
        return x, -1 if axis is None else axis
    named = any(attribute.name == "axis" for attribute in operator.onnx_node.attribute)
    start = (axis if named and axis is not None else 1) % max(x.ndim, 1)
    return x.reshape(*x.shape[:start], -1), -1


class Softmax(OpRun):
    def _run(self, x: Array, axis: int | None = None) -> tuple[Array]:
        flat, own = _flattened(self, x, axis)
        weights = np.exp(flat - flat.max(own, keepdims=True))
        return ((weights / weights.sum(own, keepdims=True)).reshape(x.shape),)


class LogSoftmax(OpRun):
    def _run(self, x: Array, axis: int | None = None) -> tuple[Array]:
        flat, own = _flattened(self, x, axis)
        centred = flat - flat.max(own, keepdims=True)
        return ((centred - np.log(np.exp(centred).sum(own, keepdims=True))).reshape(x.shape),)


class Hardmax(OpRun):
    """1 at the first largest, else 0."""

    def _run(self, x: Array, axis: int | None = None) -> tuple[Array]:
        flat, own = _flattened(self, x, axis)
        chosen = np.zeros_like(flat)
        np.put_along_axis(chosen, np.expand_dims(flat.argmax(own), own), 1, own)
        return (chosen.reshape(x.shape),)
