"""Convolutions and pools in double.

In onnx 1.23 Conv is a Python loop; ConvTranspose is wrong with groups and fails on an output_shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_max_pool import MaxPool as LibraryMaxPool

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


def _sides(
    image: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int] | None,
    auto_pad: str | None,
) -> list[tuple[int, int]]:
    """Padding before and after each axis."""
    axes = len(kernel)
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        given = list(pads or [0] * 2 * axes) if auto_pad != "VALID" else [0] * 2 * axes
        return [(given[k], given[k + axes]) for k in range(axes)]
    sides = []
    for size, own, step, wide in zip(image, kernel, strides, dilations, strict=True):
        total = max((-(-size // step) - 1) * step + (own - 1) * wide + 1 - size, 0)
        sides.append((total // 2, total - total // 2) if auto_pad == "SAME_UPPER" else (total - total // 2, total // 2))
    return sides


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
        sides = _sides(x.shape[2:], w.shape[2:], step, spread, pads, auto_pad)
        image = np.pad(x, [(0, 0), (0, 0), *sides])
        columns = _columns(image, w.shape[2:], step, spread)
        groups, shape = group or 1, columns.shape[2 + axes :]
        filters = w.reshape(groups, len(w) // groups, -1)
        images = [filters @ each.reshape(groups, filters.shape[2], -1) for each in columns]  # one copied at a time
        whole = np.stack(images).reshape(len(x), len(w), *shape)
        return (whole if b is None else whole + b.reshape(-1, *[1] * axes),)


class ConvTranspose(OpRun):
    """Each input pixel adds its kernel to the output; padding crops it."""

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
        output_padding: list[int] | None = None,
        output_shape: list[int] | None = None,
        pads: list[int] | None = None,
        strides: list[int] | None = None,
    ) -> tuple[Array]:
        axes, groups = w.ndim - 2, group or 1
        step, spread = list(strides or [1] * axes), list(dilations or [1] * axes)
        more, kernel = list(output_padding or [0] * axes), w.shape[2:]
        reach = [(kernel[k] - 1) * spread[k] + 1 for k in range(axes)]
        whole = [(x.shape[k + 2] - 1) * step[k] + reach[k] + more[k] for k in range(axes)]
        filters = w.reshape(groups, len(w) // groups, -1).swapaxes(1, 2)  # (groups, columns * places, channels)
        made = filters @ x.reshape(len(x), groups, len(w) // groups, -1)
        made = made.reshape(len(x), groups * w.shape[1], *kernel, *x.shape[2:])
        out = np.zeros((len(x), groups * w.shape[1], *whole), x.dtype)
        for place in np.ndindex(*kernel):
            cut = [
                slice(at * wide, at * wide + (size - 1) * stride + 1, stride)
                for at, wide, size, stride in zip(place, spread, x.shape[2:], step, strict=True)
            ]
            out[(slice(None), slice(None), *cut)] += made[(slice(None), slice(None), *place)]
        for k, (before, size) in enumerate(_cropped(whole, x.shape[2:], step, pads, auto_pad, output_shape)):
            missing = max(before + size - out.shape[k + 2], 0)
            out = np.pad(out, [(0, missing if axis == k + 2 else 0) for axis in range(out.ndim)])
            out = np.take(out, range(before, before + size), axis=k + 2)
        return (out if b is None else out + b.reshape(-1, *[1] * axes),)


def _cropped(
    whole: Sequence[int],
    image: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int] | None,
    auto_pad: str | None,
    output_shape: Sequence[int] | None,
) -> list[tuple[int, int]]:
    """What ConvTranspose crops before each axis, and the size that it leaves."""
    axes = len(whole)
    same = auto_pad in ("SAME_UPPER", "SAME_LOWER")
    if not output_shape and not same:
        given = list(pads or [0] * 2 * axes) if auto_pad != "VALID" else [0] * 2 * axes
        return [(given[k], whole[k] - given[k] - given[k + axes]) for k in range(axes)]
    sizes = output_shape[-axes:] if output_shape else [size * step for size, step in zip(image, strides, strict=True)]
    total = [max(whole[k] - sizes[k], 0) for k in range(axes)]
    upper = auto_pad == "SAME_UPPER"
    return [(total[k] // 2 if upper else total[k] - total[k] // 2, sizes[k]) for k in range(axes)]


def _pooled(
    x: Array,
    kernel: list[int],
    strides: list[int] | None,
    dilations: list[int] | None,
    pads: list[int] | None,
    auto_pad: str | None,
    ceil_mode: int | None,
    fill: float,
    behind: float | None = None,
) -> Array:
    """The windows (batch, channels, *kernel, *output). `fill`: the padding. `behind`: what `ceil_mode` adds to it."""
    axes = len(kernel)
    step, spread = list(strides or [1] * axes), list(dilations or [1] * axes)
    sides = _sides(x.shape[2:], kernel, step, spread, pads, auto_pad)
    more = [0] * axes
    if ceil_mode and auto_pad in (None, "", "NOTSET"):
        for k, (before, after) in enumerate(sides):
            left = x.shape[k + 2] + before + after - (kernel[k] - 1) * spread[k] - 1
            last = -(-left // step[k]) * step[k]
            more[k] = last - left if last < x.shape[k + 2] + before else 0  # no window begins in the padding behind
    padded = np.pad(x, [(0, 0), (0, 0), *sides], constant_values=fill)
    longer = [(0, 0), (0, 0), *((0, size) for size in more)]
    return _columns(np.pad(padded, longer, constant_values=fill if behind is None else behind), kernel, step, spread)


class MaxPool(OpRun):
    """The places of the largest are the library's."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        dilations: list[int] | None = None,
        kernel_shape: list[int] | None = None,
        pads: list[int] | None = None,
        storage_order: int | None = None,
        strides: list[int] | None = None,
    ) -> tuple[Array, ...]:
        if len(self.onnx_node.output) > 1 and self.onnx_node.output[1]:
            library: Any = LibraryMaxPool(self.onnx_node, self.run_params)
            return tuple(np.asarray(array) for array in library.run(x))
        kernel = list(kernel_shape or [])
        lowest = -np.inf if np.issubdtype(x.dtype, np.floating) else float(np.iinfo(x.dtype).min)
        windows = _pooled(x, kernel, strides, dilations, pads, auto_pad, ceil_mode, lowest)
        return (windows.max(tuple(range(2, 2 + len(kernel)))),)


class AveragePool(OpRun):
    """Of a window's pixels, with `count_include_pad` also of its padding, never of what lies behind the padding."""

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
        kernel = list(kernel_shape or [])
        over = tuple(range(2, 2 + len(kernel)))
        window = kernel, strides, dilations, pads, auto_pad, ceil_mode
        counted = _pooled(np.ones((1, 1, *x.shape[2:])), *window, 1.0 if count_include_pad else 0.0, behind=0.0)
        return (_pooled(x, *window, 0.0).sum(over) / counted.sum(over),)


class LpPool(OpRun):
    """(sum of |x|^p)^(1/p) of a window."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        dilations: list[int] | None = None,
        kernel_shape: list[int] | None = None,
        p: int | None = None,
        pads: list[int] | None = None,
        strides: list[int] | None = None,
    ) -> tuple[Array]:
        kernel, power = list(kernel_shape or []), 2 if p is None else p
        windows = _pooled(np.abs(x) ** power, kernel, strides, dilations, pads, auto_pad, ceil_mode, 0.0)
        return (windows.sum(tuple(range(2, 2 + len(kernel)))) ** (1 / power),)


class GlobalLpPool(OpRun):
    op_domain = ""

    def _run(self, x: Array, p: int | None = None) -> tuple[Array]:
        power = 2 if p is None else p
        return ((np.abs(x) ** power).sum(tuple(range(2, x.ndim)), keepdims=True) ** (1 / power),)
