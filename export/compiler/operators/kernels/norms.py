"""Normalisations in float64.

In onnx 1.23 BatchNormalization of opset 9 to 13 takes the batch's statistics.
"""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

from export.compiler.graph.constants import Array


def _root_mean_square(x: Array, axes: tuple[int, ...] | int, epsilon: float | None) -> Array:
    """sqrt(mean of x^2 + epsilon), with the axes kept as 1. By default epsilon is 1e-5."""
    return np.asarray(np.sqrt((x * x).mean(axes, keepdims=True) + (1e-5 if epsilon is None else epsilon)))


class SimplifiedLayerNormalization(OpRun):
    """x / sqrt(mean of squares + epsilon) * scale"""

    def _run(
        self,
        x: Array,
        scale: Array,
        axis: int | None = None,
        epsilon: float | None = None,
        **unread: object,
    ) -> tuple[Array]:
        axes = tuple(range((-1 if axis is None else axis) % x.ndim, x.ndim))
        return (x / _root_mean_square(x, axes, epsilon) * scale,)


class RMSNormalization(SimplifiedLayerNormalization):
    """The operator's name in opset 23."""


class BatchNormalization(OpRun):
    """Normalises each channel, axis 1, by the given statistics.

    In training_mode it takes the statistics of x, and also returns running averages of the given and these.
    """

    def _run(
        self,
        x: Array,
        scale: Array,
        bias: Array,
        mean: Array,
        variance: Array,
        epsilon: float | None = None,
        momentum: float | None = None,
        training_mode: int | None = None,
        **unread: object,
    ) -> tuple[Array, ...]:
        running, decay = (mean, variance), 0.9 if momentum is None else momentum
        if training_mode:
            others = tuple(axis for axis in range(x.ndim) if axis != 1)
            mean, variance = x.mean(others), x.var(others)
        shape = [1, -1] + [1] * (x.ndim - 2)
        deviation = np.sqrt(variance + (1e-5 if epsilon is None else epsilon))
        normal = (x - mean.reshape(shape)) / deviation.reshape(shape) * scale.reshape(shape) + bias.reshape(shape)
        averages = (old * decay + new * (1 - decay) for old, new in zip(running, (mean, variance), strict=True))
        return (normal, *averages)[: len(self.onnx_node.output)]


class GroupNormalization(OpRun):
    """Normalises the channels and pixels of a group. Scale and bias are per group, from opset 21 on per channel."""

    def _run(
        self,
        x: Array,
        scale: Array,
        bias: Array,
        epsilon: float | None = None,
        num_groups: int | None = None,
        **unread: object,
    ) -> tuple[Array]:
        groups = x.reshape(len(x), num_groups or 1, -1)
        centred = groups - groups.mean(2, keepdims=True)
        normal = (centred / _root_mean_square(centred, 2, epsilon)).reshape(x.shape)
        by_channel = (np.repeat(array, x.shape[1] // len(array)) for array in (scale, bias))
        factor, shift = (array.reshape(1, -1, *[1] * (x.ndim - 2)) for array in by_channel)
        return (normal * factor + shift,)


class LpNormalization(OpRun):
    """x / norm; 0 where the norm is 0."""

    def _run(self, x: Array, axis: int | None = None, p: int | None = None) -> tuple[Array]:
        axis = -1 if axis is None else axis
        norm = np.abs(x).sum(axis, keepdims=True) if p == 1 else np.sqrt((x * x).sum(axis, keepdims=True))
        return (x / np.where(norm == 0, 1.0, norm),)


class LRN(OpRun):
    """x / (bias + alpha / size * sum of squares of `size` neighbouring channels) ^ beta"""

    def _run(
        self,
        x: Array,
        alpha: float | None = None,
        beta: float | None = None,
        bias: float | None = None,
        size: int | None = None,
    ) -> tuple[Array]:
        width = size or 1
        before = (width - 1) // 2
        squares = np.pad(x * x, [(0, 0), (before, width - 1 - before), *[(0, 0)] * (x.ndim - 2)])
        total = sum(squares[:, shift : shift + x.shape[1]] for shift in range(width))
        factor = (1e-4 if alpha is None else alpha) / width
        return (x / ((1.0 if bias is None else bias) + factor * total) ** (0.75 if beta is None else beta),)
