"""Faults that would falsify a GPU's figures.

In: planned steps, engines, rows of results, Triton's configuration. Out: a line for each fault.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.presets.gpu import Step

# Options whose values a fair comparison needs.
CANDIDATES = {
    "--model": ("vit", "vitbnffn", "vitbn", "cnn"),
    "--runtime": ("torch", "torch-sdpa", "torch-compile", "torch-cudagraphs", "onnx-cudagraph"),
    "--precision": ("fp32", "fp16"),
}
# An argument of a step -> what the step measures.
STEPS = {
    "--published-configuration": "the published depths",
    "layout": "the training time of an epoch",
    "int8": "lower precisions of TensorRT",
}
ON_EVERY_MACHINE = ("the network has no", "is measured only in")  # reasons of rows that no machine measures


def plan(planned: Sequence[Step], root: Path) -> Iterator[str]:
    """Faults of the planned steps. `root`: the Makefile's folder."""
    yield from candidates(planned)
    yield from environment(root)
    yield from percentiles()
    yield from one_difference()


def candidates(planned: Sequence[Step]) -> Iterator[str]:
    arguments = next((step.arguments for step in planned if step.name == "latency"), ())
    for option, values in CANDIDATES.items():
        for value in values:
            if (option, value) not in pairwise(arguments):
                yield f"latency.py: expected {option} {value} among the candidates, found none"
    for word, what in STEPS.items():
        if not any(word in step.arguments for step in planned):
            yield f"expected a step that measures {what} ({word}), found none"


def environment(root: Path) -> Iterator[str]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    variables.pop("DRY_RUN", None)
    command = ["make", "--dry-run", "--always-make", "benchmarks-gpu"]
    printed = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True).stdout
    lines = [line for line in printed.splitlines() if "--preset gpu" in line]
    if not (lines and f"{root}/.venv-gpu/bin:" in lines[0]):
        yield f"make benchmarks-gpu: expected .venv-gpu/bin first on PATH, found {lines or 'no such line'}"


def percentiles() -> Iterator[str]:
    """A fault if p99 is that of the turns' medians. In each turn of ten calls the last call is slow."""
    from benchmarks.measure.interleaved_timing import _durations

    p99_ms = _durations([[1_000_000] * 9 + [50_000_000]] * 3).percentile_ms(99)
    if p99_ms < 49:
        yield f"timing: expected p99 of all calls, 50 ms, found {p99_ms:g} ms, of the turns' medians"


def one_difference() -> Iterator[str]:
    """A fault if tensorrt-plain and tensorrt-folded differ in more than the folding."""
    from benchmarks.measure.engines import RUNTIMES

    plain, folded = RUNTIMES["tensorrt-plain"], RUNTIMES["tensorrt-folded"]
    if replace(plain, name=folded.name, label=folded.label, rewrites="bn") != folded or plain.rewrites != "none":
        yield f"tensorrt-plain, tensorrt-folded: expected the folding as their one difference, found {plain}, {folded}"


def engines(builds: Sequence[tuple[bytes, Any]]) -> Iterator[str]:
    """Faults of TensorRT engines. `builds`: ONNX file and options of each engine."""
    engines = Counter((data, options.precision, tuple(options.profiles)) for data, options in builds)
    if repeats := len(builds) - len(engines):
        yield f"TensorRT: expected each engine built once, found {repeats} built again"
    if uncached := sum(not options.timing_cache for _, options in builds):
        yield f"TensorRT: expected a timing cache for every engine, found {uncached} without"
    ranges = {profile for _, options in builds for profile in options.profiles if len({*profile}) > 1}
    for profile in sorted(ranges):
        yield f"TensorRT: expected a profile for each batch size, found one from {profile[0]} to {profile[2]} images"


def rows(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Candidates that were not measured, and rows that are compared with PyTorch in another precision."""
    import numpy as np

    for row in rows:
        if "reason" in row:
            if not any(reason in row["reason"] for reason in ON_EVERY_MACHINE):
                yield f"latency.py: {row['model']} {row['runtime']} {row['precision']}: {row['reason']}"
            continue
        baselines = [
            other
            for other in rows
            if other.get("runtime") == "torch"
            and all(other.get(key) == row[key] for key in ("model", "depth", "precision", "batch"))
        ]
        if baselines:
            expected = np.median(baselines[0]["samples_ns"]) / np.median(row["samples_ns"])
            ratio = (row["ratio_to_same_precision"] or {}).get("ratio")
            if ratio is None or abs(ratio - expected) > 1e-9 * expected:
                name = f"{row['model']} {row['runtime']} {row['precision']}"
                yield f"latency.py: {name}: expected its speed over PyTorch in {row['precision']}, found over another"


def configuration(text: str, instances: int) -> Iterator[str]:
    """Faults of config.pbtxt. Triton uses a CUDA graph only if the graph states the input's dims and a lower bound."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as pb

    message = text_format.Parse(text, pb.ModelConfig())
    inputs = {tensor.name: list(tensor.dims) for tensor in message.input}
    for graph in message.optimization.cuda.graph_spec:
        where = f"config.pbtxt: CUDA graph of batch {graph.batch_size}"
        for part, what in ((graph, "graph_spec"), (graph.graph_lower_bound, "graph_lower_bound")):
            dims = {name: list(shape.dim) for name, shape in part.input.items()}
            if dims != inputs:
                yield f"{where}: expected {inputs} as input of {what}, found {dims or 'none'}"
        if not 1 <= graph.graph_lower_bound.batch_size <= graph.batch_size:
            yield f"{where}: expected a lower bound from 1 on, found {graph.graph_lower_bound.batch_size}"
    if (count := sum(group.count for group in message.instance_group)) != instances:
        engine = message.platform or message.backend
        yield f"config.pbtxt: {engine}: expected as many instances as asked for, {instances}, found {count}"
