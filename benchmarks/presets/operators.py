"""Times the operators of an ONNX graph in ONNX Runtime on the CPU."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from benchmarks.measure.devices import cores
from benchmarks.measure.measured_network import rewrite_checkpoint, shipped_network
from benchmarks.measure.result_file import Record
from benchmarks.reporting.recorded_decorator import recorded
from models.catalog import SHIPPED

if TYPE_CHECKING:
    from export.checkpoint_to_onnx import Rewrites
    from export.compare_logits import Images


BATCH, CALLS = 64, 100  # images a call, timed calls


@click.command()
@click.option("--model", type=click.Choice(SHIPPED), default="vitbn", show_default=True)
@recorded("operators")
def operators(record: Record, model: str) -> None:
    """Time each operator of a shipped model in ONNX Runtime on the CPU: the plain export and all rewrites."""
    network = shipped_network(model)
    images = network.examples(BATCH)
    forms: Mapping[str, Rewrites] = {"plain": "none", "all": "all"}
    for name, rewrites in forms.items():
        graph = profile_graph(rewrite_checkpoint(network.path, rewrites).onnx, images, CALLS, cores())
        graph_fields = {"model": model, "batch": BATCH, "calls": CALLS, "rewrites": name}
        graph_fields |= {name: graph[name] for name in ("p50_ms", "profiled_p50_ms", "nodes_p50_ms")}
        record.add(*(graph_fields | row for kind in ("operators", "groups") for row in graph[kind]))


def profile_graph(data: bytes, images: Images, calls: int, threads: int) -> dict[str, Any]:
    """Medians of the ONNX file `data` in two sessions, with and without the profiler.

    `p50_ms`: a call without the profiler. `profiled_p50_ms`: a call with the profiler. `nodes_p50_ms`: the sum of the
    nodes' medians. `nodes`, and their groups by operator (`operators`) and by operator and shapes (`groups`): rows.
    """
    from benchmarks.measure.interleaved_timing import ON_A_CPU, time_interleaved

    with tempfile.TemporaryDirectory() as folder:
        profiled, plain = (_session(data, threads, prefix) for prefix in (Path(folder, "ort"), None))
        feeds = {"image": images}
        timed_calls = {"profiled": lambda: profiled.run(None, feeds), "plain": lambda: plain.run(None, feeds)}
        all_rounds = replace(ON_A_CPU, one_state=False)  # as in the profiler's events
        measured = time_interleaved(timed_calls, 0.001, "profiling", calls, protocol=all_rounds)
        events = json.loads(Path(profiled.end_profiling()).read_text())
    nodes = list(node_rows(events, calls))
    return {
        "p50_ms": measured["plain"].percentile_ms(50),
        "profiled_p50_ms": measured["profiled"].percentile_ms(50),
        "nodes_p50_ms": sum(node["p50_us"] for node in nodes) / 1000,
        "operators": group_nodes(nodes, ["operator"]),
        "groups": group_nodes(nodes, ["operator", "shapes"]),
        "nodes": nodes,
    }


def _session(data: bytes, threads: int, profile_prefix: Path | None) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False  # as in all benchmarks
    if profile_prefix:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_prefix)
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def node_rows(events: Sequence[dict[str, Any]], calls: int) -> Iterator[dict[str, Any]]:
    """A row for each node, with its median in µs over the timed calls.

    `events`: of ONNX Runtime's profiler. The first call warms up. In a quick graph an untimed call precedes each timed
    call.
    """
    kernel_events: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            kernel_events[event["name"].removesuffix("_kernel_time")].append(event)
    for name, node_events in kernel_events.items():
        calls_a_timed_call = max(1, (len(node_events) - 1) // calls)
        timed = node_events[::-calls_a_timed_call][:calls]
        facts = timed[0]["args"]
        inputs, outputs = (_shapes(facts[f"{side}_type_shape"]) for side in ("input", "output"))
        yield {
            "node": name,
            "operator": facts["op_name"],
            "shapes": f"{' · '.join(map(_shape_text, inputs))} → {' · '.join(map(_shape_text, outputs))}",
            "p50_us": median(event["dur"] for event in timed),
            "flops": flops(facts["op_name"], inputs, outputs[0]),
        }


def _shapes(tensors: Sequence[dict[str, list[int]]]) -> list[list[int]]:
    """The shapes of `tensors`. The profiler writes a tensor as {dtype: shape}."""
    return [shape for tensor in tensors for shape in tensor.values()]


def _shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def flops(operator: str, inputs: Sequence[Sequence[int]], output: Sequence[int]) -> int | None:
    """Floating-point operations of a matrix product or convolution; None for other operators.

    The profiler omits weights that ONNX Runtime packed beforehand, so K comes from the left factor.
    """
    if operator in ("MatMul", "FusedMatMul", "Gemm", "FusedGemm"):
        inner = prod(inputs[0][-2:]) // output[-2]  # (…, M, K) or its transpose, over M of (…, M, N)
        return 2 * prod(output) * inner
    if operator in ("Conv", "FusedConv") and len(inputs) > 1 and len(inputs[1]) == len(output):
        return 2 * prod(output) * prod(inputs[1][1:])  # weight: (out, in / groups, h, w)
    return None


def group_nodes(nodes: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each group of nodes with equal values of `keys`, slowest first."""
    from benchmarks.reporting.tables.table import group_rows

    total_us = sum(node["p50_us"] for node in nodes)
    rows = []
    for values, members in group_rows(nodes, *keys).items():
        group_us = sum(node["p50_us"] for node in members)
        work = [node["flops"] for node in members]
        rows.append(
            dict(zip(keys, values, strict=True))
            | {
                "count": len(members),
                "p50_us": group_us,
                "share": group_us / total_us,
                "gflops_per_s": sum(work) / group_us / 1000 if group_us and None not in work else None,
            }
        )
    return sorted(rows, key=lambda row: -float(row["p50_us"]))
