"""How loads are called: on the server, in messages and in tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from benchmarks.measure.candidate import Candidate
from benchmarks.measure.engines import SERVED

if TYPE_CHECKING:
    from benchmarks.measure.workload_settings import Workload


def served_name(candidate: Candidate, workload: Workload) -> str:
    """The model's name on the server. Workloads that differ only in their requests share a model."""
    sharing = f"{workload.instances}x{candidate.threads}"
    return f"{candidate.model}-{candidate.runtime.engine}-{candidate.precision}-{sharing}"


def transport(row: Mapping[str, Any]) -> str:
    """The protocol and, if client and server share memory, the kind of memory. `row`: of a result, or a workload."""
    memory = {"system": ", shared memory", "cuda": ", CUDA shared memory"}
    return f"{row['protocol']}{memory.get(row['shared_memory'], '')}"


def engine_and_sharing(row: Mapping[str, Any]) -> str:
    """Engine and precision, unless they are ONNX Runtime in float32, and INSTANCES x THREADS of a result's row."""
    is_default = (row["engine"], row["precision"]) == ("onnxruntime", "fp32")
    engine = "" if is_default else f"{SERVED[row['engine']].library} {row['precision']}, "
    return f"{engine}{row['instances']} x {row['threads'] or 'all'}"
