"""Resize and GridSample of images (batch, channels, *pixels), in float64.

onnx's reference differs from ONNX Runtime where a size is fractional, and where opsets differ. These kernels compute as
ONNX Runtime does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_resize import Resize as LibraryResize

from export.compiler.graph.constants import Array

CUBIC = -0.75  # Keys' coefficient


def cubic(distance: Array, a: float = CUBIC) -> Array:
    """Weights of pixels at these distances. R. Keys, "Cubic convolution interpolation", 1981."""
    d = np.abs(distance)
    near, far = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _places(kind: str, new: int, old: int, scale: float, roi: tuple[float, float]) -> Array:
    """Where each pixel of the new axis lies on the old axis, in pixels. `kind`: coordinate_transformation_mode."""
    at = np.arange(new, dtype=np.float64)
    match kind:
        case "align_corners":
            return at * (old - 1) / (new - 1) if new > 1 else 0 * at
        case "asymmetric":
            return at / scale
        case "tf_crop_and_resize":
            start, end = roi
            if new == 1:
                return np.array([0.5 * (start + end) * (old - 1)])
            return start * (old - 1) + at * (end - start) * (old - 1) / (new - 1)
        case "pytorch_half_pixel" if new == 1:
            return np.array([0.0])
        case "tf_half_pixel_for_nn":
            return (at + 0.5) / scale
        case "half_pixel_symmetric":
            adjusted = new / (scale * old)
            return old / 2 * (1 - adjusted) + (at + 0.5) / scale - 0.5
        case _:
            return (at + 0.5) / scale - 0.5


def _nearest(places: Array, rounding: str, shrinks: bool) -> Array:
    """The old pixel that is nearest to each place."""
    if rounding == "simple":  # as in opset 10
        rounding = "ceil" if shrinks else "floor"
    match rounding:
        case "floor":
            rounded = np.floor(places)
        case "ceil":
            rounded = np.ceil(places)
        case "round_prefer_ceil":
            rounded = np.floor(places + 0.5)
        case _:
            rounded = np.ceil(places - 0.5)
    return np.asarray(rounded)


def _weights(places: Array, old: int, mode: str, coefficient: float, exclude: bool) -> Array:
    """(new, old): the weight of each old pixel in each new pixel.

    Pixels outside the image count as its edge; with `exclude` they do not count.
    """
    reach = 1 if mode == "linear" else 2
    first = np.floor(places).astype(int) - reach + 1
    pixels = first[:, None] + np.arange(2 * reach)
    distance = places[:, None] - pixels
    weights = np.maximum(0.0, 1 - np.abs(distance)) if mode == "linear" else cubic(distance, coefficient)
    if exclude:
        weights = np.where((pixels >= 0) & (pixels < old), weights, 0.0)
        weights = weights / weights.sum(1, keepdims=True)
    matrix = np.zeros((len(places), old))
    np.add.at(matrix, (np.arange(len(places))[:, None], pixels.clip(0, old - 1)), weights)
    return matrix


class Resize(OpRun):
    """A product with a matrix of weights for each axis. The library does antialiasing and keeps aspect ratios."""

    def _run(
        self,
        x: Array,
        roi: Array | None = None,
        scales: Array | None = None,
        sizes: Array | None = None,
        antialias: int | None = None,
        axes: list[int] | None = None,
        coordinate_transformation_mode: str | None = None,
        cubic_coeff_a: float | None = None,
        exclude_outside: int | None = None,
        extrapolation_value: float | None = None,
        keep_aspect_ratio_policy: str | None = None,
        mode: str | None = None,
        nearest_mode: str | None = None,
    ) -> tuple[Array]:
        old_form = self.run_params["opsets"][""] == 10  # X, scales
        if old_form:
            roi, scales = None, roi
        kind = "asymmetric" if old_form else coordinate_transformation_mode or "half_pixel"
        if antialias or keep_aspect_ratio_policy not in (None, "stretch"):
            library: Any = LibraryResize(self.onnx_node, self.run_params)
            return (np.asarray(library.run(x, roi, scales, sizes)[0]),)
        axes = [axis % x.ndim for axis in axes] if axes else list(range(x.ndim))
        factors = scales if scales is not None and np.size(scales) else None
        regions = np.asarray(roi if roi is not None and np.size(roi) else [0.0] * len(axes) + [1.0] * len(axes))
        rounding = "simple" if old_form else nearest_mode or "round_prefer_floor"
        out, is_outside = x, np.zeros((1,) * x.ndim, bool)
        for k, axis in enumerate(axes):
            old = x.shape[axis]
            new = int(np.floor(old * factors[k])) if factors is not None else int(np.asarray(sizes)[k])
            scale = float(factors[k]) if factors is not None else new / old
            if new == old and scale == 1 and kind != "tf_crop_and_resize":
                continue
            places = _places(kind, new, old, scale, (regions[k], regions[k + len(axes)]))
            if mode in (None, "nearest"):
                out = np.take(out, _nearest(places, rounding, scale < 1).astype(int).clip(0, old - 1), axis)
            else:
                coefficient = CUBIC if cubic_coeff_a is None else cubic_coeff_a
                weights = _weights(places, old, mode or "", coefficient, bool(exclude_outside))
                out = np.moveaxis(np.moveaxis(out, axis, -1) @ weights.T, -1, axis)
            if kind == "tf_crop_and_resize":
                shape = [1] * x.ndim
                shape[axis] = -1
                is_outside = is_outside | ((places < 0) | (places > old - 1)).reshape(shape)
        return (np.where(is_outside, extrapolation_value or 0.0, out).astype(x.dtype),)


class GridSample(OpRun):
    """Pixels at places of x (N, C, *in), which grid (N, *out, axes) gives from -1 to 1, the last axis first."""

    def _run(
        self,
        x: Array,
        grid: Array,
        align_corners: int | None = None,
        mode: str | None = None,
        padding_mode: str | None = None,
    ) -> tuple[Array]:
        axes, padding = x.ndim - 2, padding_mode or "zeros"
        kind = (mode or "linear").removeprefix("bi")
        sizes = x.shape[2:]
        places = [_denormalised(grid[..., axes - 1 - k], sizes[k], bool(align_corners)) for k in range(axes)]
        if kind == "nearest":
            places = [np.rint(place) for place in places]
        if kind != "cubic":
            places = [
                _inside(place, size, padding, bool(align_corners)) for place, size in zip(places, sizes, strict=True)
            ]
        reach = {"nearest": 0, "linear": 1, "cubic": 2}[kind]
        first = [np.floor(place).astype(int) - max(reach - 1, 0) for place in places]
        out = np.zeros((len(x), x.shape[1], *grid.shape[1:-1]))
        for shift in np.ndindex(*[max(2 * reach, 1)] * axes):
            pixels = [start + k for start, k in zip(first, shift, strict=True)]
            weight = np.ones(grid.shape[:-1])
            for place, pixel in zip(places, pixels, strict=True):
                distance = place - pixel
                weight = weight * (cubic(distance) if kind == "cubic" else np.maximum(0.0, 1 - np.abs(distance)))
            out += weight[:, None] * self._pixels(x, pixels, padding, bool(align_corners))
        return (out.astype(x.dtype),)

    def _pixels(self, x: Array, pixels: list[Array], padding: str, corners: bool) -> Array:
        """(N, C, *out): x at these pixels, an array of indices (N, *out) for each axis."""
        is_inside = np.ones(pixels[0].shape, bool)
        indices = []
        for pixel, size in zip(pixels, x.shape[2:], strict=True):
            if padding == "zeros":
                is_inside &= (pixel >= 0) & (pixel < size)
            moved = _inside(pixel.astype(np.float64), size, padding, corners)
            indices.append(np.rint(moved).astype(int).clip(0, size - 1))
        batch = np.arange(len(x)).reshape(-1, *[1] * (pixels[0].ndim - 1))
        index: tuple[Any, ...] = (batch, slice(None), *indices)
        return np.asarray(np.where(is_inside[:, None], np.moveaxis(x[index], -1, 1), 0.0))


def _denormalised(place: Array, size: int, corners: bool) -> Array:
    """A place from -1 to 1 in pixels. With `corners` -1 and 1 are the centres of corner pixels, else the edges."""
    return np.asarray((place + 1) / 2 * (size - 1) if corners else ((place + 1) * size - 1) / 2)


def _inside(place: Array, size: int, padding: str, corners: bool) -> Array:
    """The place, moved into the image by clamping or by reflection at its edges if `padding` says so."""
    if padding == "border":
        return place.clip(0, size - 1)
    if padding != "reflection":
        return place
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    width = high - low
    if width == 0:
        return np.full_like(place, low)
    offset = np.abs(place - low) % (2 * width)
    reflected = low + np.where(offset > width, 2 * width - offset, offset)
    return np.asarray(np.where((place >= low) & (place <= high), place, reflected))
