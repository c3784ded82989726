from __future__ import annotations

from pathlib import Path

import click

from benchmarks.measure.choices import json_option
from benchmarks.measure.machine import cores
from models.catalog import SHIPPED, shipped

BATCH, CALLS = 64, 100


@click.command()
@click.option("--model", type=click.Choice(SHIPPED), default="vitbn", show_default=True)
@json_option
def operators(model: str, json_path: Path | None) -> None:
    """Time each operator of a shipped model in ONNX Runtime on the CPU: the plain export and all rewrites."""
    from benchmarks.measure.networks import example_images
    from benchmarks.measure.profiling import profile_graph
    from benchmarks.measure.run import recording
    from benchmarks.reporting.tables import show
    from export.graph import Form
    from export.pipeline import export_checkpoint
    from models.checkpoints.checkpoint import read_config

    images = example_images(read_config(shipped(model)), BATCH)
    with recording(json_path, cores()) as record:
        for name, rewritten in (("plain", False), ("all", True)):
            data = export_checkpoint(shipped(model), Form(rewrites="all" if rewritten else "none")).onnx
            graph = profile_graph(data, images, CALLS, cores())
            about = {"model": model, "batch": BATCH, "calls": CALLS, "rewrites": name}
            about |= {name: graph[name] for name in ("p50_ms", "profiled_p50_ms", "nodes_p50_ms")}
            record.add(*(about | row for kind in ("operators", "groups") for row in graph[kind]))
        click.echo(show(record.run(), "operators"))
