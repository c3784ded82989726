"""Operators that move elements, and CumSum. onnx's GatherElements fails on indices of shape (1, n), its Pad on negative
pads, its CumSum on an axis in a vector, which ONNX Runtime takes; its ScatterND, ScatterElements and GatherND move one
element after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

from export.compiler.graph.constants import Array


class CumSum(OpRun):
    def _run(self, x: Array, axis: Array, exclusive: int | None = None, reverse: int | None = None) -> tuple[Array]:
        own = int(np.reshape(axis, ()))
        given = np.flip(x, own) if reverse else x
        total = np.cumsum(given, own, dtype=x.dtype)
        if exclusive:
            total = total - given
        return (np.flip(total, own) if reverse else total,)


class GatherElements(OpRun):
    def _run(self, x: Array, indices: Array, axis: int | None = None) -> tuple[Array]:
        own = (axis or 0) % x.ndim
        source = x[tuple(slice(None) if k == own else slice(size) for k, size in enumerate(indices.shape))]
        return (np.take_along_axis(source, np.where(indices < 0, indices + x.shape[own], indices), own),)


class Pad(OpRun):
    """Negative pads crop, first."""

    def _run(
        self,
        x: Array,
        pads: Array | list[int] | None = None,
        constant: Array | None = None,
        axes: Array | None = None,
        mode: str | None = None,
        value: float | None = None,
    ) -> tuple[Array]:
        own = range(x.ndim) if axes is None else [int(axis) % x.ndim for axis in axes]
        given = [int(size) for size in np.ravel(np.asarray(pads))]
        before, after = [0] * x.ndim, [0] * x.ndim
        for position, axis in enumerate(own):
            before[axis], after[axis] = given[position], given[position + len(own)]
        cut = [
            slice(max(-left, 0), size - max(-right, 0))
            for left, right, size in zip(before, after, x.shape, strict=True)
        ]
        wider = [(max(left, 0), max(right, 0)) for left, right in zip(before, after, strict=True)]
        if mode not in (None, "constant"):
            options: dict[str, Any] = {"mode": mode}
            return (np.pad(x[tuple(cut)], wider, **options),)
        fill = constant if constant is not None and np.size(constant) else np.asarray(value or 0.0)
        return (np.pad(x[tuple(cut)], wider, constant_values=np.reshape(fill, ()).astype(x.dtype)),)


class GatherND(OpRun):
    def _run(self, x: Array, indices: Array, batch_dims: int | None = None) -> tuple[Array]:
        batches = batch_dims or 0
        behind = (1,) * (indices.ndim - 1 - batches)
        grid = [axis.reshape(axis.shape + behind) for axis in np.indices(indices.shape[:batches], sparse=True)]
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
    """Its name of opset 10."""


REDUCTIONS: dict[str, np.ufunc] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _put(x: Array, places: tuple[Array, ...], updates: Array, reduction: str | None) -> Array:
    out = x.copy()
    if reduction in REDUCTIONS:
        REDUCTIONS[reduction].at(out, places, updates)
    else:
        out[places] = updates
    return out
