"""Command line: where the time of an inference goes, operator by operator, plain and after all rewrites.

ONNX Runtime's own profiler times every node of its optimised graph; here the calls are put together to medians. What a
call takes without the profiler stands beside them, so that what profiling costs can be seen.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from benchmarks.ways import cores
from models.catalog import SHIPPED, shipped

if TYPE_CHECKING:
    from export.equivalence import Images

PLAIN, ALL = "plain", "all"
SHOWN = 12  # groups of nodes in the printed table


@click.command()
@click.option("--model", type=click.Choice(SHIPPED), default="vitbn", show_default=True)
@click.option("--batch", type=click.IntRange(1), default=64, show_default=True, help="Images a call.")
@click.option("--calls", type=click.IntRange(3), default=100, show_default=True)
@click.option("--threads", type=click.IntRange(1), help="[default: all cores]")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every node and the environment.")
def operators(model: str, batch: int, calls: int, threads: int | None, json_path: Path | None) -> None:
    """Time each operator of a shipped model in ONNX Runtime on the CPU: the plain export, and all rewrites done."""
    from benchmarks.contestants import example_images
    from export.graph import export
    from export.rewrites import pipeline
    from models.checkpoint import load
    from models.environment import describe
    from models.files import write_atomically

    threads = threads or cores()
    checkpoint = load(shipped(model))
    images = example_images(checkpoint.config, batch)
    graphs = []
    for name, wanted in ((PLAIN, ()), (ALL, pipeline.ALL)):
        graphs.append({"rewrites": name} | profile_graph(export(checkpoint, wanted).onnx, images, calls, threads))
        _print(f"{model}, {name}, {batch} images a call, {threads} threads", graphs[-1])
    if json_path:
        result = {
            "benchmark": "operators",
            "command": f"python benchmarks/operators.py --model {model} --batch {batch} --calls {calls} --json FILE",
            "environment": describe(threads, "cpu"),
            "model": model,
            "batch": batch,
            "calls": calls,
            "graphs": graphs,
        }
        write_atomically(json_path, json.dumps(result, indent=2).encode())
        click.echo(f"Wrote {json_path}")


def profile_graph(data: bytes, images: Images, calls: int, threads: int) -> dict[str, Any]:
    """JSON-ready: the call's median with and without the profiler, and its nodes put together, the slowest first.

    `operators` are the nodes of one type, `groups` those of one type and the same shapes, `nodes` each for itself.
    """
    from benchmarks.timing import time_interleaved

    with tempfile.TemporaryDirectory() as folder:
        profiled, alone = (_session(data, threads, prefix) for prefix in (Path(folder, "ort"), None))
        feeds = {"image": images}
        runs = {"profiled": lambda: profiled.run(None, feeds), "alone": lambda: alone.run(None, feeds)}
        measured = time_interleaved(runs, 0.001, lambda share: None, calls)
        events = json.loads(Path(profiled.end_profiling()).read_text())
    nodes = list(nodes_of(events, calls))
    return {
        "p50_ms": measured["alone"].percentile_ms(50),
        "profiled_p50_ms": measured["profiled"].percentile_ms(50),
        "nodes_p50_ms": sum(node["p50_us"] for node in nodes) / 1000,
        "operators": together(nodes, ["operator"]),
        "groups": together(nodes, ["operator", "shapes"]),
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


def nodes_of(events: Sequence[dict[str, Any]], calls: int) -> Iterator[dict[str, Any]]:
    """A row a node, from the profiler's events: its median in microseconds over the last `calls` calls, its work."""
    taken: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            taken[event["name"].removesuffix("_kernel_time")].append(event)
    for name, own in taken.items():
        inputs, outputs = (_shapes(own[-1]["args"][f"{side}_type_shape"]) for side in ("input", "output"))
        yield {
            "node": name,
            "operator": own[-1]["args"]["op_name"],
            "shapes": f"{' · '.join(map(_said, inputs))} → {' · '.join(map(_said, outputs))}",
            "p50_us": median(event["dur"] for event in own[-calls:]),
            "flops": flops(own[-1]["args"]["op_name"], inputs, outputs[0]),
        }


def _shapes(tensors: Sequence[dict[str, list[int]]]) -> list[list[int]]:
    """The profiler writes each tensor as {type: shape}."""
    return [shape for tensor in tensors for shape in tensor.values()]


def _said(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def flops(operator: str, inputs: Sequence[Sequence[int]], output: Sequence[int]) -> int | None:
    """Floating-point operations of a product or convolution; None for other operators.

    The profiler leaves out weights that were packed beforehand, so K comes from the left factor alone.
    """
    if operator in ("MatMul", "FusedMatMul", "Gemm", "FusedGemm"):
        inner = prod(inputs[0][-2:]) // output[-2]  # (…, M, K) or its transpose, over M of (…, M, N)
        return 2 * prod(output) * inner
    if operator in ("Conv", "FusedConv") and len(inputs) > 1 and len(inputs[1]) == len(output):
        return 2 * prod(output) * prod(inputs[1][1:])  # weight: (out, in / groups, h, w)
    return None


def together(nodes: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Nodes alike in `keys` as one row, the slowest first: count, microseconds, share of all nodes, GFLOP/s."""
    total_us = sum(node["p50_us"] for node in nodes)
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for node in nodes:
        groups[tuple(node[key] for key in keys)].append(node)
    rows = []
    for alike, members in groups.items():
        taken_us = sum(node["p50_us"] for node in members)
        work = [node["flops"] for node in members]
        rows.append(
            dict(zip(keys, alike, strict=True))
            | {
                "count": len(members),
                "p50_us": taken_us,
                "share": taken_us / total_us,
                "gflops_per_s": sum(work) / taken_us / 1000 if taken_us and None not in work else None,
            }
        )
    return sorted(rows, key=lambda row: -float(row["p50_us"]))


def _print(title: str, graph: dict[str, Any]) -> None:
    from benchmarks.timing import table

    click.echo(
        f"{title}: {graph['p50_ms']:.2f} ms a call, {graph['profiled_p50_ms']:.2f} under the profiler,"
        f" of which {graph['nodes_p50_ms']:.2f} in operators"
    )
    header = ("operator", "shapes", "count", "us", "share %", "GFLOP/s")
    cells = [
        (
            row["operator"],
            row.get("shapes", "all"),
            str(row["count"]),
            f"{row['p50_us']:,.0f}",
            f"{100 * row['share']:.1f}",
            f"{row['gflops_per_s']:,.0f}" if row["gflops_per_s"] is not None else "-",
        )
        for row in (*graph["operators"], *graph["groups"][:SHOWN])
    ]
    click.echo(table(header, cells))


if __name__ == "__main__":
    operators()
