"""Kernels in double for operators that onnx's reference computes slowly or wrongly.

In onnx 1.23 LayerNormalization computes in float32, BatchNormalization of opset 9 to 13 uses batch statistics,
GatherElements fails on indices of shape (1, n), and Erf and Conv are Python loops. No torch: `vitbn rewrite` runs
without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

from export.compiler.operators.erf import erf

Array = NDArray[Any]


def _columns(image: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """A view of the pixels that each place of a kernel meets: (batch, channels, *kernel, *output)."""
    reach = [(size - 1) * wide + 1 for size, wide in zip(kernel, dilations, strict=True)]
    axes = tuple(range(2, image.ndim))
    # Raises ValueError for a kernel larger than the image. numpy's types allow one axis.
    windows = np.lib.stride_tricks.sliding_window_view(image, reach, axes)  # type: ignore[call-overload]
    every = (slice(None), slice(None))
    thinned = windows[(*every, *(slice(None, None, step) for step in (*strides, *dilations)))]
    return np.moveaxis(thinned, axes, tuple(axis + len(axes) for axis in axes))


class Conv(OpRun):
    """One product of matrices for each image and group."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: str | None = None,
        dilations: list[int] | None = None,
        group: int | None = None,
        kernel_shape: list[int] | None = None,
        pads: list[int] | None = None,
        strides: list[int] | None = None,
    ) -> tuple[Array]:
        axes = w.ndim - 2
        step, spread = list(strides or [1] * axes), list(dilations or [1] * axes)
        sides = list(pads or [0] * 2 * axes)
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            for k in range(axes):
                reach = (w.shape[k + 2] - 1) * spread[k] + 1
                total = max((-(-x.shape[k + 2] // step[k]) - 1) * step[k] + reach - x.shape[k + 2], 0)
                small, large = total // 2, total - total // 2
                sides[k], sides[k + axes] = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
        image = np.pad(x, [(0, 0), (0, 0), *((sides[k], sides[k + axes]) for k in range(axes))])
        columns = _columns(image, w.shape[2:], step, spread)
        groups, shape = group or 1, columns.shape[2 + axes :]
        filters = w.reshape(groups, len(w) // groups, -1)
        images = [filters @ each.reshape(groups, filters.shape[2], -1) for each in columns]  # one copied at a time
        whole = np.stack(images).reshape(len(x), len(w), *shape)
        return (whole if b is None else whole + b.reshape(-1, *[1] * axes),)


class LayerNormalization(OpRun):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the axes from `axis` on."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        scale: Array,
        bias: Array | None = None,
        axis: int | None = None,
        epsilon: float | None = None,
        stash_type: int | None = None,
    ) -> tuple[Array]:
        axes = tuple(range((-1 if axis is None else axis) % x.ndim, x.ndim))
        centred = x - x.mean(axes, keepdims=True)
        size = np.sqrt((centred * centred).mean(axes, keepdims=True) + (1e-5 if epsilon is None else epsilon))
        normal = centred / size * scale
        return (normal if bias is None else normal + bias,)


class SimplifiedLayerNormalization(OpRun):
    """x / sqrt(mean of squares + epsilon) * scale"""

    op_domain = ""

    def _run(
        self,
        x: Array,
        scale: Array,
        axis: int | None = None,
        epsilon: float | None = None,
        stash_type: int | None = None,
    ) -> tuple[Array]:
        axes = tuple(range((-1 if axis is None else axis) % x.ndim, x.ndim))
        size = np.sqrt((x * x).mean(axes, keepdims=True) + (1e-5 if epsilon is None else epsilon))
        return (x / size * scale,)


class RMSNormalization(SimplifiedLayerNormalization):
    """The operator's name in opset 23."""


class BatchNormalization(OpRun):
    """Inference only, over axis 1."""

    op_domain = ""

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
        spatial: int | None = None,
    ) -> tuple[Array]:
        shape = [1, -1] + [1] * (x.ndim - 2)
        size = np.sqrt(variance + (1e-5 if epsilon is None else epsilon))
        return ((x - mean.reshape(shape)) / size.reshape(shape) * scale.reshape(shape) + bias.reshape(shape),)


class Erf(OpRun):
    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (erf(x),)


class Gelu(OpRun):
    op_domain = ""

    def _run(self, x: Array, approximate: str | None = None) -> tuple[Array]:
        if approximate == "tanh":
            return (x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),)
        return (x * 0.5 * (1 + erf(x / np.sqrt(2))),)


class Attention(OpRun):
    """softmax(scale q k' + mask) v over (batch, heads, tokens, features), or with heads inside the features.

    As in ONNX Runtime, the lowest float32 masks, and a query without a key gives zeros.
    """

    op_domain = ""

    def _run(
        self,
        q: Array,
        k: Array,
        v: Array,
        mask: Array | None = None,
        past_key: Array | None = None,
        past_value: Array | None = None,
        lengths: Array | None = None,
        is_causal: int | None = None,
        kv_num_heads: int | None = None,
        q_num_heads: int | None = None,
        qk_matmul_output_mode: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        softmax_precision: int | None = None,
        left_window_size: int | None = None,
        right_window_size: int | None = None,
    ) -> tuple[Array]:
        if {left_window_size, right_window_size} - {None, -1}:
            raise NotImplementedError("expected no window of keys")
        if is_causal or softcap or past_key is not None or past_value is not None or lengths is not None:
            raise NotImplementedError("expected no causal mask, no softcap and no cache")
        joined = q.ndim == 3
        if joined:
            q = _split_heads(q, q_num_heads)
            k, v = (_split_heads(array, kv_num_heads) for array in (k, v))
        k, v = (np.repeat(array, q.shape[1] // array.shape[1], axis=1) for array in (k, v))
        scores = q @ k.swapaxes(2, 3) * (1 / np.sqrt(q.shape[3]) if scale is None else scale)
        if mask is not None:
            seen = mask if mask.dtype == bool else mask > np.finfo(np.float32).min
            scores = scores + np.where(seen, 0.0 if mask.dtype == bool else mask, -np.inf)
        top = scores.max(-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isneginf(top), 0.0, top))
        total = weights.sum(-1, keepdims=True)
        out = weights / np.where(total == 0, 1.0, total) @ v
        return (out.swapaxes(1, 2).reshape(*out.shape[::2], -1) if joined else out,)


def _split_heads(array: Array, heads: int | None) -> Array:
    return array.reshape(*array.shape[:2], heads or 1, -1).swapaxes(1, 2)


class AveragePool(OpRun):
    op_domain = ""

    def _run(
        self,
        x: Array,
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        count_include_pad: int | None = None,
        dilations: list[int] | None = None,
        kernel_shape: list[int] | None = None,
        pads: list[int] | None = None,
        strides: list[int] | None = None,
    ) -> tuple[Array]:
        sides, kernel = list(pads or [0, 0, 0, 0]), list(kernel_shape or [])
        even = sides[:2] == sides[2:] and auto_pad in (None, "", "NOTSET", "VALID")
        if len(kernel) != 2 or ceil_mode or not even or set(dilations or [1]) != {1}:
            raise NotImplementedError("expected two axes, even padding and no ceil_mode")
        padding = [(0, 0), (0, 0), *((side, side) for side in sides[:2])]
        total, count = (
            _columns(np.pad(each, padding), kernel, strides or [1, 1], [1, 1]).sum((2, 3))
            for each in (x, np.ones((1, 1, *x.shape[2:])))
        )
        return (total / (np.prod(kernel) if count_include_pad else count),)


class GatherElements(OpRun):
    op_domain = ""

    def _run(self, x: Array, indices: Array, axis: int | None = None) -> tuple[Array]:
        own = (axis or 0) % x.ndim
        source = x[tuple(slice(None) if k == own else slice(size) for k, size in enumerate(indices.shape))]
        return (np.take_along_axis(source, np.where(indices < 0, indices + x.shape[own], indices), own),)


KERNELS: list[type[OpRun]] = [
    Conv,
    LayerNormalization,
    SimplifiedLayerNormalization,
    RMSNormalization,
    BatchNormalization,
    Erf,
    Gelu,
    Attention,
    AveragePool,
    GatherElements,
]
