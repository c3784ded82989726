"""Checks that the proof in double fits into memory.

The evaluator holds one weight in double at a time. Weights computed by passes stay in double until the end.
"""

from __future__ import annotations

import os

import numpy as np
import onnx_ir as ir

from export.onnx_rewrites.constants import EXACT
from export.onnx_rewrites.errors import NotSupported

SHARE = 0.5  # of free memory
DOUBLE = 8  # bytes


def check_memory(model: ir.Model, limit: int | None = None) -> None:
    """Raises NotSupported if the proof in double needs more than `limit` bytes, by default half of the free memory."""
    weights = [value for value in model.graph.initializers.values() if value.const_value is not None]
    computed = sum(array.nbytes for value in weights if isinstance(array := value.meta.get(EXACT), np.ndarray))
    largest = max((value.const_value.size for value in weights if value.const_value is not None), default=0)
    needed = computed + 2 * DOUBLE * largest
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = int(SHARE * free) if limit is None else limit
    if needed > limit:
        raise NotSupported(
            f"proof in double: expected to need at most {limit / 1e9:.1f} GB, found {needed / 1e9:.1f} GB; "
            "--proof float32 compares the files alone"
        )
