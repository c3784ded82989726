"""Times the networks of a comparison in PyTorch and ONNX Runtime along three axes: batch size, depth and width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.measure.devices import cores
from benchmarks.measure.engines import COMPARED, DEFAULT_PRECISIONS, candidates
from benchmarks.measure.network import Network
from benchmarks.measure.options import json_option, seconds_option
from benchmarks.measure.workload import Workload
from models.networks.config import ModelConfig

if TYPE_CHECKING:
    from benchmarks.measure.run import Row

RUNTIMES = ("torch", "onnx-optimized")
DEPTH = 6  # blocks on the axes of batch size and width
BATCHES = (1, 4, 16, 64, 256, 1024)
DEPTHS = (1, 2, 3, 6, 9, 12)
DIMS = (32, 64, 128, 256)
AXIS_BATCH = 64  # images per call on the axes of depth and width


@click.command()
@seconds_option(60, "At most, for the rounds of all; three rounds of each in any case.")
@json_option
@click.pass_context
def sweep(context: click.Context, seconds: float, json_path: Path | None) -> None:
    """Time calls against batch size, depth and width."""
    from benchmarks.measure.devices import choose
    from benchmarks.measure.latency_rows import Comparison
    from benchmarks.measure.roofline import Limits
    from benchmarks.measure.run import recording
    from benchmarks.reporting.tables.timed_calls import unstable_lines

    device, threads = choose("auto"), cores()
    precisions = DEFAULT_PRECISIONS[device]
    middle = ModelConfig(depth=DEPTH)
    points = _points(middle)
    seconds_a_workload = seconds / sum(len(workloads) for *_, workloads in points)
    with recording(json_path, threads, device) as record:
        comparison = Comparison(record, Limits(device, threads, precisions), _print_table)
        for axis, config, workloads in points:
            compared = candidates(_networks(config, config == middle), RUNTIMES, precisions, threads, device)
            title = None if axis == "batch" else f"{axis} {getattr(config, axis)}"
            comparison.measure(compared, workloads, seconds_a_workload, title, axis=axis)
        comparison.finish()
    for line in unstable_lines(comparison.rows):
        click.echo(line)
    context.exit(1 if comparison.missing.wrong else 0)


def _print_table(rows: Sequence[Row]) -> None:
    from benchmarks.reporting.tables.timed_calls import batch_table

    click.echo(batch_table(rows, with_dim=any(row["axis"] == "dim" for row in rows)))


def _points(middle: ModelConfig) -> list[tuple[str, ModelConfig, list[Workload]]]:
    """Axis, configuration and workloads. Off its axis each point has the values of `middle` and AXIS_BATCH."""
    return [
        ("batch", middle, [Workload(batch) for batch in BATCHES]),
        *(("depth", replace(middle, depth=depth), [Workload(AXIS_BATCH)]) for depth in DEPTHS),
        *(("dim", replace(middle, dim=dim), [Workload(AXIS_BATCH)]) for dim in DIMS),
    ]


def _networks(config: ModelConfig, is_middle: bool) -> list[Network]:
    """The compared networks; the CNN, which has neither depth nor width, only in the middle configuration."""
    networks = [Network(model, replace(config, model=model)) for model in COMPARED]
    return [network for network in networks if network.config.is_transformer or is_middle]
