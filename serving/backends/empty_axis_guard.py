"""Refuses requests with an axis of size 0 that would end a model's process.

Some of ONNX Runtime's kernels divide by the size of an axis, and a division by 0 ends the process. In: an engine, and
a version's manifest, whose field `never_empty` names the axes of inputs that must not have size 0: {"input_ids": [1]}.
The publication determined these axes by trying the file. Out: an engine that answers such a request with an error.
Triton itself refuses an empty batch where it batches; its native backend has no guard for the other axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from common.repository import MANIFEST_FILE, Damaged, is_axes_by_name, read_manifest
from serving.backends.batching import Array, Engine, RunFailed
from serving.backends.config_check import ModelRefused

FIELD = "never_empty"


class EmptyAxisGuard:
    """An engine that refuses empty axes; `never_empty`: input -> its axes, counted from 0 with the batch dimension."""

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
    """The engine with a guard, or the engine itself if the version names no such axes. Raises ModelRefused."""
    try:
        never_empty = read_manifest(version_dir / MANIFEST_FILE).get(FIELD)
    except Damaged:
        return engine
    if never_empty is None:
        return engine
    if not is_axes_by_name(never_empty):
        raise ModelRefused(f"{MANIFEST_FILE}, '{FIELD}': expected the axes of inputs, found {never_empty!r}")
    return EmptyAxisGuard(engine, never_empty)
