"""Normalisations in double.

In onnx 1.23 LayerNormalization computes in float32, BatchNormalization of opset 9 to 13 takes batch statistics.
"""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

from export.compiler.graph.constants import Array


def _size(x: Array, axes: tuple[int, ...] | int, epsilon: float | None) -> Array:
    """The root of the mean of squares."""
    return np.asarray(np.sqrt((x * x).mean(axes, keepdims=True) + (1e-5 if epsilon is None else epsilon)))


def _behind(x: Array, axis: int | None) -> tuple[int, ...]:
    """The axes from `axis` on, by default the last."""
    return tuple(range((-1 if axis is None else axis) % x.ndim, x.ndim))


class LayerNormalization(OpRun):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the axes from `axis` on."""

    def _run(
        self,
        x: Array,
        scale: Array,
        bias: Array | None = None,
        axis: int | None = None,
        epsilon: float | None = None,
        **unread: object,
    ) -> tuple[Array, ...]:
        axes = _behind(x, axis)
        mean = x.mean(axes, keepdims=True)
        centred = x - mean
        size = _size(centred, axes, epsilon)
        normal = centred / size * scale
        return (normal if bias is None else normal + bias, mean, 1 / size)[: len(self.onnx_node.output)]


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
        return (x / _size(x, _behind(x, axis), epsilon) * scale,)


class RMSNormalization(SimplifiedLayerNormalization):
    """The operator's name in opset 23."""


class BatchNormalization(OpRun):
    """Over axis 1, with the given statistics; in training_mode with those of x, which join the given."""

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
        given, kept = (mean, variance), 0.9 if momentum is None else momentum
        if training_mode:
            others = tuple(axis for axis in range(x.ndim) if axis != 1)
            mean, variance = x.mean(others), x.var(others)
        shape = [1, -1] + [1] * (x.ndim - 2)
        size = np.sqrt(variance + (1e-5 if epsilon is None else epsilon))
        normal = (x - mean.reshape(shape)) / size.reshape(shape) * scale.reshape(shape) + bias.reshape(shape)
        mixed = (old * kept + new * (1 - kept) for old, new in zip(given, (mean, variance), strict=True))
        return (normal, *mixed)[: len(self.onnx_node.output)]


class GroupNormalization(OpRun):
    """Over channels and places of a group. Scale and bias are of a group, from opset 21 on of a channel."""

    def _run(
        self,
        x: Array,
        scale: Array,
        bias: Array,
        epsilon: float | None = None,
        num_groups: int | None = None,
        **unread: object,
    ) -> tuple[Array]:
        groups = num_groups or 1
        apart = x.reshape(len(x), groups, -1)
        centred = apart - apart.mean(2, keepdims=True)
        size = _size(centred, 2, epsilon)
        channels = (1, -1, *[1] * (x.ndim - 2))
        factor, shift = (np.repeat(each, x.shape[1] // len(each)).reshape(channels) for each in (scale, bias))
        return ((centred / size).reshape(x.shape) * factor + shift,)


class InstanceNormalization(OpRun):
    """Over all places of a channel."""

    def _run(self, x: Array, scale: Array, bias: Array, epsilon: float | None = None) -> tuple[Array]:
        places, channels = tuple(range(2, x.ndim)), (1, -1, *[1] * (x.ndim - 2))
        centred = x - x.mean(places, keepdims=True)
        size = _size(centred, places, epsilon)
        return (centred / size * scale.reshape(channels) + bias.reshape(channels),)


class MeanVarianceNormalization(OpRun):
    """(x - mean) / (standard deviation + 1e-9)"""

    def _run(self, x: Array, axes: list[int] | None = None) -> tuple[Array]:
        over = tuple(axes if axes is not None else (0, 2, 3))
        centred = x - x.mean(over, keepdims=True)
        return (centred / (_size(centred, over, 0.0) + 1e-9),)


class LpNormalization(OpRun):
    """x / norm; where the norm is 0, so is the answer."""

    def _run(self, x: Array, axis: int | None = None, p: int | None = None) -> tuple[Array]:
        own = -1 if axis is None else axis
        power = 2 if p is None else p
        size = np.abs(x).sum(own, keepdims=True) if power == 1 else np.sqrt((x * x).sum(own, keepdims=True))
        return (x / np.where(size == 0, 1.0, size),)


class LRN(OpRun):
    """x / (bias + alpha / size * sum of squares of the channels beside) ^ beta"""

    def _run(
        self,
        x: Array,
        alpha: float | None = None,
        beta: float | None = None,
        bias: float | None = None,
        size: int | None = None,
    ) -> tuple[Array]:
        wide = size or 1
        before = (wide - 1) // 2
        squares = np.pad(x * x, [(0, 0), (before, wide - 1 - before), *[(0, 0)] * (x.ndim - 2)])
        total = sum(squares[:, shift : shift + x.shape[1]] for shift in range(wide))
        factor = (1e-4 if alpha is None else alpha) / wide
        return (x / ((1.0 if bias is None else bias) + factor * total) ** (0.75 if beta is None else beta),)
