"""Convolutions and pools of images (batch, channels, *pixels), in float64.

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
    """The attributes of convolutions and pools."""

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


def _strides_and_dilations(window: Window, axes: int) -> tuple[list[int], list[int]]:
    return list(window.get("strides") or [1] * axes), list(window.get("dilations") or [1] * axes)


def _patches(image: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Array:
    """A view of the pixels under the kernel at each of its places: (batch, channels, *kernel, *output)."""
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    axes = tuple(range(2, image.ndim))
    # Raises ValueError for a kernel larger than the image. numpy's types allow a single axis only.
    windows = np.lib.stride_tricks.sliding_window_view(image, spans, axes)  # type: ignore[call-overload]
    steps = (slice(None, None, step) for step in (*strides, *dilations))
    return np.moveaxis(windows[(slice(None), slice(None), *steps)], axes, tuple(axis + len(axes) for axis in axes))


def _pads(window: Window, axes: int) -> list[tuple[int, int]]:
    """The padding before and after each axis that the node names."""
    pads = list(window.get("pads") or [0] * 2 * axes) if window.get("auto_pad") != "VALID" else [0] * 2 * axes
    return [(pads[k], pads[k + axes]) for k in range(axes)]


def _padding(image: Sequence[int], kernel: Sequence[int], window: Window) -> list[tuple[int, int]]:
    """The padding before and after each axis, which the node may leave to `auto_pad`."""
    auto_pad = window.get("auto_pad")
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        return _pads(window, len(kernel))
    padding = []
    for size, length, stride, dilation in zip(image, kernel, *_strides_and_dilations(window, len(kernel)), strict=True):
        total = max((-(-size // stride) - 1) * stride + (length - 1) * dilation + 1 - size, 0)
        small, large = total // 2, total - total // 2
        padding.append((small, large) if auto_pad == "SAME_UPPER" else (large, small))
    return padding


class Conv(OpRun):
    """A product of matrices for each image and group."""

    def _run(self, x: Array, w: Array, b: Array | None = None, **window: Unpack[Window]) -> tuple[Array]:
        axes = w.ndim - 2
        strides, dilations = _strides_and_dilations(window, axes)
        padding = _padding(x.shape[2:], w.shape[2:], window)
        patches = _patches(np.pad(x, [(0, 0), (0, 0), *padding]), w.shape[2:], strides, dilations)
        groups, shape = window.get("group") or 1, patches.shape[2 + axes :]
        filters = w.reshape(groups, len(w) // groups, -1)
        # The reshape copies the patches; memory holds the copy for a single image.
        images = [filters @ image.reshape(groups, filters.shape[2], -1) for image in patches]
        out = np.stack(images).reshape(len(x), len(w), *shape)
        return (out if b is None else out + b.reshape(-1, *[1] * axes),)


class ConvTranspose(OpRun):
    """Each input pixel adds its kernel to the output; padding crops the output."""

    def _run(self, x: Array, w: Array, b: Array | None = None, **window: Unpack[Window]) -> tuple[Array]:
        axes, groups, kernel = w.ndim - 2, window.get("group") or 1, w.shape[2:]
        strides, dilations = _strides_and_dilations(window, axes)
        output_padding = list(window.get("output_padding") or [0] * axes)
        spans = [(kernel[k] - 1) * dilations[k] + 1 for k in range(axes)]
        sizes = [(x.shape[k + 2] - 1) * strides[k] + spans[k] + output_padding[k] for k in range(axes)]
        filters = w.reshape(groups, len(w) // groups, -1).swapaxes(1, 2)  # (groups, out channels * kernel, channels)
        products = filters @ x.reshape(len(x), groups, len(w) // groups, -1)
        products = products.reshape(len(x), groups * w.shape[1], *kernel, *x.shape[2:])
        out = np.zeros((len(x), groups * w.shape[1], *sizes), x.dtype)
        for place in np.ndindex(*kernel):
            pixels = [
                slice(at * dilation, at * dilation + (size - 1) * stride + 1, stride)
                for at, dilation, size, stride in zip(place, dilations, x.shape[2:], strides, strict=True)
            ]
            out[(slice(None), slice(None), *pixels)] += products[(slice(None), slice(None), *place)]
        for k, (before, size) in enumerate(_crops(sizes, x.shape[2:], window)):
            missing = max(before + size - out.shape[k + 2], 0)
            out = np.pad(out, [(0, missing if axis == k + 2 else 0) for axis in range(out.ndim)])
            out = np.take(out, range(before, before + size), axis=k + 2)
        return (out if b is None else out + b.reshape(-1, *[1] * axes),)


def _crops(sizes: Sequence[int], image: Sequence[int], window: Window) -> list[tuple[int, int]]:
    """For each axis the pixels that ConvTranspose crops at its start, and the size of the output.

    sizes: of the output before it is cropped. image: the sizes of the input.
    """
    axes = len(sizes)
    auto_pad, wanted = window.get("auto_pad"), window.get("output_shape")
    if not wanted and auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        return [(before, sizes[k] - before - after) for k, (before, after) in enumerate(_pads(window, axes))]
    strides, _ = _strides_and_dilations(window, axes)
    targets = wanted[-axes:] if wanted else [size * stride for size, stride in zip(image, strides, strict=True)]
    totals = [max(size - target, 0) for size, target in zip(sizes, targets, strict=True)]
    starts = [total // 2 if auto_pad == "SAME_UPPER" else total - total // 2 for total in totals]
    return [*zip(starts, targets, strict=True)]


def _pooled(x: Array, window: Window, fill: float, overhang: float | None = None) -> Array:
    """The patches under a pool's window: (batch, channels, *kernel, *output).

    fill: the number in the padding. overhang: the number in the pixels that `ceil_mode` adds behind the padding, by
    default `fill`.
    """
    kernel = list(window.get("kernel_shape") or [])
    strides, dilations = _strides_and_dilations(window, len(kernel))
    padding = _padding(x.shape[2:], kernel, window)
    added = [0] * len(kernel)
    if window.get("ceil_mode") and window.get("auto_pad") in (None, "", "NOTSET"):
        for k, (before, after) in enumerate(padding):
            room = x.shape[k + 2] + before + after - (kernel[k] - 1) * dilations[k] - 1
            last = -(-room // strides[k]) * strides[k]  # where the last window begins
            added[k] = last - room if last < x.shape[k + 2] + before else 0  # no window begins in the end's padding
    padded = np.pad(x, [(0, 0), (0, 0), *padding], constant_values=fill)
    overhangs = [(0, 0), (0, 0), *((0, size) for size in added)]
    padded = np.pad(padded, overhangs, constant_values=fill if overhang is None else overhang)
    return _patches(padded, kernel, strides, dilations)


def _pixel_axes(x: Array) -> tuple[int, ...]:
    """The axes of an image's pixels; of patches the kernel's axes."""
    return tuple(range(2, x.ndim))


class MaxPool(OpRun):
    """The library's kernel computes the second output, the indices of the largest pixels."""

    def _run(self, x: Array, **window: Unpack[Window]) -> tuple[Array, ...]:
        if len(self.onnx_node.output) > 1 and self.onnx_node.output[1]:
            library: Any = LibraryMaxPool(self.onnx_node, self.run_params)
            return tuple(np.asarray(array) for array in library.run(x))
        lowest = -np.inf if np.issubdtype(x.dtype, np.floating) else float(np.iinfo(x.dtype).min)
        return (_pooled(x, window, lowest).max(_pixel_axes(x)),)


class GlobalMaxPool(OpRun):
    """The library takes other axes unless pixels have two."""

    def _run(self, x: Array) -> tuple[Array]:
        return (x.max(_pixel_axes(x), keepdims=True),)


class AveragePool(OpRun):
    """The mean of a window's pixels. With `count_include_pad` padding counts; pixels behind the padding never count."""

    def _run(self, x: Array, **window: Unpack[Window]) -> tuple[Array]:
        padding = 1.0 if window.get("count_include_pad") else 0.0
        counts = _pooled(np.ones((1, 1, *x.shape[2:])), window, padding, overhang=0.0)
        return (_pooled(x, window, 0.0).sum(_pixel_axes(x)) / counts.sum(_pixel_axes(x)),)


class LpPool(OpRun):
    """(sum of |x|^p)^(1/p) of a window; p is 2 by default."""

    def _run(self, x: Array, **window: Unpack[Window]) -> tuple[Array]:
        power = window.get("p") or 2
        return (_pooled(np.abs(x) ** power, window, 0.0).sum(_pixel_axes(x)) ** (1 / power),)
