"""Times the networks of a comparison in PyTorch and ONNX Runtime along three axes: batch size, depth and width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import click

from benchmarks.measure.devices import cores
from benchmarks.measure.engines import COMPARED, DEFAULT_PRECISIONS, candidates
from benchmarks.measure.measured_network import Network
from benchmarks.measure.options import seconds_option
from benchmarks.measure.result_file import Record, Row
from benchmarks.reporting.recorded_decorator import recorded
from models.networks.config import ModelConfig

RUNTIMES = ("torch", "onnx-optimized")
DEPTH = 6  # blocks on the axes of batch size and width
BATCHES = (1, 4, 16, 64, 256, 1024)
DEPTHS = (1, 2, 3, 6, 9, 12)
DIMS = (32, 64, 128, 256)
AXIS_BATCH = 64  # images per call on the axes of depth and width


@click.command()
@seconds_option(60, "At most, for the rounds of all; three rounds of each in any case.")
@recorded()
def sweep(record: Record, seconds: float) -> int:
    """Time calls against batch size, depth and width."""
    from benchmarks.measure.devices import choose
    from benchmarks.measure.latency_measurement import Comparison
    from benchmarks.measure.peak_flops_and_bandwidth import Limits
    from benchmarks.reporting.tables.latencies import unstable_lines

    record.device = device = choose("auto")
    threads = cores()
    precisions = DEFAULT_PRECISIONS[device]
    middle = ModelConfig(depth=DEPTH)
    points = _points(middle)
    seconds_a_batch = seconds / sum(len(batches) for *_, batches in points)
    comparison = Comparison(record, Limits(device, threads, precisions), _print_table)
    for axis, config, batches in points:
        compared = candidates(_networks(config, config == middle), RUNTIMES, precisions, threads, device)
        title = None if axis == "batch" else f"{axis} {getattr(config, axis)}"
        comparison.measure(compared, batches, seconds_a_batch, title, axis=axis)
    comparison.finish()
    for line in unstable_lines(comparison.rows):
        click.echo(line)
    return int(comparison.missing.wrong)


def _print_table(rows: Sequence[Row]) -> None:
    from benchmarks.reporting.tables.latencies import batch_table

    click.echo(batch_table(rows, with_dim=any(row["axis"] == "dim" for row in rows)))


def _points(middle: ModelConfig) -> list[tuple[str, ModelConfig, Sequence[int]]]:
    """Axis, configuration and batch sizes. Off its axis each point has the values of `middle` and AXIS_BATCH."""
    return [
        ("batch", middle, BATCHES),
        *(("depth", replace(middle, depth=depth), [AXIS_BATCH]) for depth in DEPTHS),
        *(("dim", replace(middle, dim=dim), [AXIS_BATCH]) for dim in DIMS),
    ]


def _networks(config: ModelConfig, is_middle: bool) -> list[Network]:
    """The compared networks; the CNN, which has no depth, only in the middle configuration."""
    networks = [Network(model, replace(config, model=model)) for model in COMPARED]
    return [network for network in networks if network.config.is_transformer or is_middle]
