"""Convolutions and pools in double.

In onnx 1.23 Conv is a Python loop; ConvTranspose is wrong with groups and fails on an output_shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_max_pool import MaxPool as LibraryMaxPool

from export.compiler.graph.constants import Array


class Window(TypedDict, total=False):
    auto_pad: str | None
    ceil_mode: int | None
    count_include_pad: int | None
    dilations: list[int] | None
    group: int | None
    kernel_shape: list[int] | None
    output_padding: list[int] | None
    output_shape: list[int] | None
    p: int | None
    pads: list[int] | None
    storage_order: int | None
    strides: list[int] | None


def _steps(given: Window, axes: int) -> tuple[list[int], list[int]]:
    """Strides and dilations."""
    return list(given.get("strides") or [1] * axes), list(given.get("dilations") or [1] * axes)


def _columns(image: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """A view of the pixels that each place of a kernel meets: (batch, channels, *kernel, *output)."""
    reach = [(size - 1) * wide + 1 for size, wide in zip(kernel, dilations, strict=True)]
    axes = tuple(range(2, image.ndim))
    # Raises ValueError for a kernel larger than the image. numpy's types allow one axis.
    windows = np.lib.stride_tricks.sliding_window_view(image, reach, axes)  # type: ignore[call-overload]
    every = (slice(None), slice(None))
    thinned = windows[(*every, *(slice(None, None, step) for step in (*strides, *dilations)))]
    return np.moveaxis(thinned, axes, tuple(axis + len(axes) for axis in axes))


def _pads(given: Window, axes: int) -> list[tuple[int, int]]:
    """Padding before and after each axis, if the node writes it."""
    pads = list(given.get("pads") or [0] * 2 * axes) if given.get("auto_pad") != "VALID" else [0] * 2 * axes
    return [(pads[k], pads[k + axes]) for k in range(axes)]


def _sides(image: Sequence[int], kernel: Sequence[int], given: Window) -> list[tuple[int, int]]:
    """Padding before and after each axis."""
    auto_pad = given.get("auto_pad")
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        return _pads(given, len(kernel))
    sides = []
    for size, own, step, wide in zip(image, kernel, *_steps(given, len(kernel)), strict=True):
        total = max((-(-size // step) - 1) * step + (own - 1) * wide + 1 - size, 0)
        sides.append((total // 2, total - total // 2) if auto_pad == "SAME_UPPER" else (total - total // 2, total // 2))
    return sides


class Conv(OpRun):
    """One product of matrices for each image and group."""

    def _run(self, x: Array, w: Array, b: Array | None = None, **given: Unpack[Window]) -> tuple[Array]:
        axes = w.ndim - 2
        step, spread = _steps(given, axes)
        sides = _sides(x.shape[2:], w.shape[2:], given)
        image = np.pad(x, [(0, 0), (0, 0), *sides])
        columns = _columns(image, w.shape[2:], step, spread)
        groups, shape = given.get("group") or 1, columns.shape[2 + axes :]
        filters = w.reshape(groups, len(w) // groups, -1)
        images = [filters @ each.reshape(groups, filters.shape[2], -1) for each in columns]  # one copied at a time
        whole = np.stack(images).reshape(len(x), len(w), *shape)
        return (whole if b is None else whole + b.reshape(-1, *[1] * axes),)


class ConvTranspose(OpRun):
    """Each input pixel adds its kernel to the output; padding crops it."""

    def _run(self, x: Array, w: Array, b: Array | None = None, **given: Unpack[Window]) -> tuple[Array]:
        axes, groups = w.ndim - 2, given.get("group") or 1
        step, spread = _steps(given, axes)
        more, kernel = list(given.get("output_padding") or [0] * axes), w.shape[2:]
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
        for k, (before, size) in enumerate(_cropped(whole, x.shape[2:], given)):
            missing = max(before + size - out.shape[k + 2], 0)
            out = np.pad(out, [(0, missing if axis == k + 2 else 0) for axis in range(out.ndim)])
            out = np.take(out, range(before, before + size), axis=k + 2)
        return (out if b is None else out + b.reshape(-1, *[1] * axes),)


def _cropped(whole: Sequence[int], image: Sequence[int], given: Window) -> list[tuple[int, int]]:
    """What ConvTranspose crops before each axis, and the size that it leaves."""
    axes = len(whole)
    auto_pad, wanted, strides = given.get("auto_pad"), given.get("output_shape"), _steps(given, axes)[0]
    if not wanted and auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        return [(before, whole[k] - before - after) for k, (before, after) in enumerate(_pads(given, axes))]
    sizes = wanted[-axes:] if wanted else [size * step for size, step in zip(image, strides, strict=True)]
    total = [max(whole[k] - sizes[k], 0) for k in range(axes)]
    upper = auto_pad == "SAME_UPPER"
    return [(total[k] // 2 if upper else total[k] - total[k] // 2, sizes[k]) for k in range(axes)]


def _pooled(x: Array, given: Window, fill: float, behind: float | None = None) -> Array:
    """The windows (batch, channels, *kernel, *output). `fill`: the padding. `behind`: what `ceil_mode` adds to it."""
    kernel = list(given.get("kernel_shape") or [])
    step, spread = _steps(given, len(kernel))
    sides = _sides(x.shape[2:], kernel, given)
    more = [0] * len(kernel)
    if given.get("ceil_mode") and given.get("auto_pad") in (None, "", "NOTSET"):
        for k, (before, after) in enumerate(sides):
            left = x.shape[k + 2] + before + after - (kernel[k] - 1) * spread[k] - 1
            last = -(-left // step[k]) * step[k]
            more[k] = last - left if last < x.shape[k + 2] + before else 0  # no window begins in the padding behind
    padded = np.pad(x, [(0, 0), (0, 0), *sides], constant_values=fill)
    longer = [(0, 0), (0, 0), *((0, size) for size in more)]
    return _columns(np.pad(padded, longer, constant_values=fill if behind is None else behind), kernel, step, spread)


def _places(x: Array) -> tuple[int, ...]:
    """The axes of pixels, and of a window's."""
    return tuple(range(2, x.ndim))


def _power(p: int | None) -> int:
    return 2 if p is None else p


class MaxPool(OpRun):
    """The places of the largest are the library's."""

    def _run(self, x: Array, **given: Unpack[Window]) -> tuple[Array, ...]:
        if len(self.onnx_node.output) > 1 and self.onnx_node.output[1]:
            library: Any = LibraryMaxPool(self.onnx_node, self.run_params)
            return tuple(np.asarray(array) for array in library.run(x))
        lowest = -np.inf if np.issubdtype(x.dtype, np.floating) else float(np.iinfo(x.dtype).min)
        return (_pooled(x, given, lowest).max(_places(x)),)


class AveragePool(OpRun):
    """Of a window's pixels, with `count_include_pad` also of its padding, never of what lies behind the padding."""

    def _run(self, x: Array, **given: Unpack[Window]) -> tuple[Array]:
        padding = 1.0 if given.get("count_include_pad") else 0.0
        counted = _pooled(np.ones((1, 1, *x.shape[2:])), given, padding, behind=0.0)
        return (_pooled(x, given, 0.0).sum(_places(x)) / counted.sum(_places(x)),)


class LpPool(OpRun):
    """(sum of |x|^p)^(1/p) of a window."""

    def _run(self, x: Array, **given: Unpack[Window]) -> tuple[Array]:
        power = _power(given.get("p"))
        return (_pooled(np.abs(x) ** power, given, 0.0).sum(_places(x)) ** (1 / power),)


class GlobalLpPool(OpRun):
    def _run(self, x: Array, p: int | None = None) -> tuple[Array]:
        power = _power(p)
        return ((np.abs(x) ** power).sum(_places(x), keepdims=True) ** (1 / power),)
