"""Checks that the proof in float64 fits into memory.

In: a graph with shapes, and sizes of its free dimensions. Out: NotSupported if the estimate exceeds the free memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from export.compiler.errors import NotSupported
from export.compiler.graph.symbolic_shapes import Shapes

SHARE = 0.5  # of the free memory
DOUBLE = 8  # bytes
WEIGHTS, VALUES = 2, 4  # live copies of the largest weight and of the largest value

MACHINE = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup")  # control groups v2


def check_memory(graph: ir.Graph, sizes: Mapping[str, int]) -> None:
    """Raises NotSupported if the proof in float64 needs more than a SHARE of the free memory, at these `sizes`."""
    shapes = Shapes(graph, sizes)
    weights = [value.const_value.size for value in graph.initializers.values() if value.const_value is not None]
    values = [shapes.dims(value) for node in graph for value in node.outputs if value.shape is not None]
    sizes_of_values = [math.prod(map(shapes.nominal, dims)) for dims in values]
    elements = WEIGHTS * max(weights, default=0) + VALUES * max(sizes_of_values, default=0)
    needed, limit = DOUBLE * elements, SHARE * free_memory()
    if needed > limit:
        raise NotSupported(
            f"proof in double: expected to need at most {limit / 1e9:.1f} GB, found {needed / 1e9:.1f} GB; "
            "--proof float32 compares only the files"
        )


def free_memory() -> int:
    """Bytes that this process may still take: the smaller of what machine and container leave."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if MACHINE.exists():  # includes the file cache, which the kernel gives back
        free = 1024 * _entry(MACHINE, "MemAvailable:", free // 1024)
    limit = CONTAINER / "memory.max"
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        free = min(free, int(text) - _entry(CONTAINER / "memory.stat", "anon", 0))
    return free


def _entry(path: Path, key: str, default: int) -> int:
    """The number behind `key` in a file of lines "key number"."""
    lines = (line.split() for line in path.read_text().splitlines())
    return next((int(words[1]) for words in lines if words[0] == key), default)
