from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from benchmarks.measure.choices import json_option
from benchmarks.measure.machine import cores
from models.catalog import SHIPPED, shipped


@click.command()
@click.option("--model", type=click.Choice(SHIPPED), default="vitbn", show_default=True)
@click.option("--batch", type=click.IntRange(1), default=64, show_default=True, help="Images per call.")
@click.option("--calls", type=click.IntRange(3), default=100, show_default=True)
@click.option("--threads", type=click.IntRange(1), help="[default: all cores]")
@json_option
def operators(model: str, batch: int, calls: int, threads: int | None, json_path: Path | None) -> None:
    """Time each operator of a shipped model in ONNX Runtime on the CPU: the plain export and all rewrites."""
    from benchmarks.measure.networks import example_images
    from benchmarks.measure.profiling import profile_graph
    from benchmarks.measure.run import recording
    from benchmarks.reporting.tables import show
    from export.pipeline import ExportOptions, export_checkpoint
    from models.checkpoint import read_config

    threads = threads or cores()
    images = example_images(read_config(shipped(model)), batch)
    rows: list[dict[str, Any]] = []
    with recording(json_path, threads) as record:
        for name, rewritten in (("plain", False), ("all", True)):
            data = export_checkpoint(shipped(model), ExportOptions(rewrites="all" if rewritten else "none")).onnx
            graph = profile_graph(data, images, calls, threads)
            about = {"model": model, "batch": batch, "calls": calls, "rewrites": name}
            about |= {name: graph[name] for name in ("p50_ms", "profiled_p50_ms", "nodes_p50_ms")}
            rows += [about | row for kind in ("operators", "groups") for row in graph[kind]]
            record.update(rows)
        click.echo(show(record.run(), "operators"))
