"""Elementwise functions and softmaxes in float64. onnx's Erf is a Python loop; its softmaxes ignore the opset."""

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
    """The array and the axis to normalise. Before opset 13 all axes from `axis` on, by default 1, are joined to one."""
    if operator.run_params["opsets"][""] >= 13:
        return x, -1 if axis is None else axis
    named = any(attribute.name == "axis" for attribute in operator.onnx_node.attribute)
    start = (axis if named and axis is not None else 1) % max(x.ndim, 1)
    return x.reshape(*x.shape[:start], -1), -1


class Softmax(OpRun):
    def _run(self, x: Array, axis: int | None = None) -> tuple[Array]:
        flat, axis = _flattened(self, x, axis)
        weights = np.exp(flat - flat.max(axis, keepdims=True))
        return ((weights / weights.sum(axis, keepdims=True)).reshape(x.shape),)


class LogSoftmax(OpRun):
    def _run(self, x: Array, axis: int | None = None) -> tuple[Array]:
        flat, axis = _flattened(self, x, axis)
        centred = flat - flat.max(axis, keepdims=True)
        return ((centred - np.log(np.exp(centred).sum(axis, keepdims=True))).reshape(x.shape),)


class Hardmax(OpRun):
    """1 at the first of the largest elements, else 0."""

    def _run(self, x: Array, axis: int | None = None) -> tuple[Array]:
        flat, axis = _flattened(self, x, axis)
        one_hot = np.zeros_like(flat)
        np.put_along_axis(one_hot, np.expand_dims(flat.argmax(axis), axis), 1, axis)
        return (one_hot.reshape(x.shape),)
