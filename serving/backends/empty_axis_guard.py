"""Refuses requests that would end a model's process: some of ONNX Runtime's kernels divide by the size of an axis.

In: an engine, and a version's manifest. Its publication has tried the file and written as `never_empty` the axes of
inputs that must not be 0: {"input_ids": [1]}. Out: an engine that answers such a request with an error. Where Triton
joins requests, it refuses those without rows itself; its native backend ends with the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from common.repository import MANIFEST_FILE, Damaged, is_axes_by_name, read_manifest
from serving.backends.batching import Array, Engine, RunFailed
from serving.backends.config_check import ModelRefused

FIELD = "never_empty"


class EmptyAxisGuard:
    """`never_empty`: input -> axes, the first is 0."""

    def __init__(self, engine: Engine, never_empty: Mapping[str, Sequence[int]]) -> None:
        self.engine, self.never_empty = engine, never_empty
        self.inputs, self.outputs = engine.inputs, engine.outputs

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        for name, axes in self.never_empty.items():
            shape = feeds[name].shape if name in feeds else ()
            for axis in axes:
                if shape[axis : axis + 1] == (0,):
                    raise RunFailed(f"input '{name}': expected at least 1 on axis {axis}, found the shape {[*shape]}")
        return self.engine.run(names, feeds)


def guard_empty_axes(engine: Engine, version_dir: Path) -> Engine:
    """The engine itself for a version without such axes, and for a file without a manifest. Raises ModelRefused."""
    try:
        told = read_manifest(version_dir / MANIFEST_FILE).get(FIELD)
    except Damaged:
        return engine
    if told is None:
        return engine
    if not is_axes_by_name(told):
        raise ModelRefused(f"{MANIFEST_FILE}, '{FIELD}': expected the axes of inputs, found {told!r}")
    return EmptyAxisGuard(engine, told)
