"""Gather, Scatter, Pad and CumSum in any dtype.

onnx's GatherElements fails on indices of shape (1, n), its Pad on negative pads, its CumSum on an axis in a vector,
which ONNX Runtime takes. Its ScatterND, ScatterElements and GatherND are Python loops over elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from export.compiler.graph.constants import Array


class CumSum(OpRun):
    def _run(self, x: Array, axis: Array, exclusive: int | None = None, reverse: int | None = None) -> tuple[Array]:
        axis_number = int(np.reshape(axis, ()))
        source = np.flip(x, axis_number) if reverse else x
        total = np.cumsum(source, axis_number, dtype=x.dtype)
        if exclusive:
            total = total - source
        return (np.flip(total, axis_number) if reverse else total,)


class GatherElements(OpRun):
    def _run(self, x: Array, indices: Array, axis: int | None = None) -> tuple[Array]:
        axis = (axis or 0) % x.ndim
        source = x[tuple(slice(None) if k == axis else slice(size) for k, size in enumerate(indices.shape))]
        return (np.take_along_axis(source, np.where(indices < 0, indices + x.shape[axis], indices), axis),)


class Pad(OpRun):
    """Negative pads crop; the array is cropped before it is padded."""

    def _run(
        self,
        x: Array,
        pads: Array | list[int] | None = None,
        constant: Array | None = None,
        axes: Array | None = None,
        mode: str | None = None,
        value: float | None = None,
    ) -> tuple[Array]:
        padded_axes = range(x.ndim) if axes is None else [int(axis) % x.ndim for axis in axes]
        sizes = [int(size) for size in np.ravel(np.asarray(pads))]
        before, after = [0] * x.ndim, [0] * x.ndim
        for position, axis in enumerate(padded_axes):
            before[axis], after[axis] = sizes[position], sizes[position + len(padded_axes)]
        cropped = x[
            tuple(
                slice(max(-left, 0), size - max(-right, 0))
                for left, right, size in zip(before, after, x.shape, strict=True)
            )
        ]
        widths = [(max(left, 0), max(right, 0)) for left, right in zip(before, after, strict=True)]
        if mode not in (None, "constant"):
            options: dict[str, Any] = {"mode": mode}
            return (np.pad(cropped, widths, **options),)
        fill = constant if constant is not None and np.size(constant) else np.asarray(value or 0.0)
        return (np.pad(cropped, widths, constant_values=np.reshape(fill, ()).astype(x.dtype)),)


class GatherND(OpRun):
    def _run(self, x: Array, indices: Array, batch_dims: int | None = None) -> tuple[Array]:
        batch_axes = batch_dims or 0
        other_axes = (1,) * (indices.ndim - 1 - batch_axes)
        grid = [axis.reshape(axis.shape + other_axes) for axis in np.indices(indices.shape[:batch_axes], sparse=True)]
        return (x[(*grid, *np.moveaxis(indices, -1, 0))],)


class ScatterND(OpRun):
    def _run(self, x: Array, indices: Array, updates: Array, reduction: str | None = None) -> tuple[Array]:
        return (_put(x, tuple(np.moveaxis(indices, -1, 0)), updates, reduction),)


class ScatterElements(OpRun):
    def _run(
        self, x: Array, indices: Array, updates: Array, axis: int | None = None, reduction: str | None = None
    ) -> tuple[Array]:
        places = [*np.indices(indices.shape, sparse=True)]
        places[axis or 0] = indices
        return (_put(x, tuple(places), updates, reduction),)


class Scatter(ScatterElements):
    """The operator's name before opset 11."""


REDUCTIONS: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _put(x: Array, places: tuple[Array, ...], updates: Array, reduction: str | None) -> Array:
    """A copy of x with updates at places, or combined there with x. `places`: an array of indices for each axis."""
    out = x.copy()
    if reduction in REDUCTIONS:
        REDUCTIONS[reduction].at(out, places, updates)
    else:
        out[places] = updates
    return out
