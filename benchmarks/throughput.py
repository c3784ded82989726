"""In: networks and loads. Out: images a second and latencies of a server, and of the same file in this process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import click

from benchmarks.measure.candidate import Candidate
from benchmarks.measure.engines import SERVED
from benchmarks.measure.measured_network import shipped_network
from benchmarks.measure.options import (
    WithPresets,
    checkpoint_options,
    device_option,
    models_to_measure,
    presets,
    repeatable_option,
    user_networks,
)
from benchmarks.measure.result_file import Record
from benchmarks.measure.workload_settings import LARGEST_BATCH, Workload
from benchmarks.reporting.recorded_decorator import recorded
from common.finite_range import FiniteRange
from export.precision_table import PRECISIONS
from models.catalog import SHIPPED, NameChoice

IN_FLIGHT = (1, 2, 8)
MIN_REQUESTS = 40  # of an open loop: one request more or less changes the rate by 2.5 %


def _sharings(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[list[int]]:
    for value in values:
        if not re.fullmatch("0*[1-9][0-9]*x[0-9]+", value):
            raise click.BadParameter(f"expected INSTANCESxTHREADS, such as 2x1, found {value}")
    return [[int(number) for number in value.split("x")] for value in values]


@presets("added", "proxy", "bulk", "texts", rates={"sharings": ["1x0"], "batches": [1], "rates": [500, 1000, 2000]})
@click.command(cls=WithPresets)
@repeatable_option("--model", "models", NameChoice(SHIPPED), "vitbn")
@repeatable_option(
    *("--sharing", "sharings", click.STRING, "1x0", "2x1"),
    callback=_sharings,
    help="INSTANCESxTHREADS of the model on the server; 0 threads: one per core.",
)
@repeatable_option("--engine", "engines", click.Choice(list(SERVED)), "onnxruntime", help="Of the server.")
@repeatable_option("--precision", "precisions", click.Choice(PRECISIONS), "fp32")
@repeatable_option("--batch", "batches", click.IntRange(1, LARGEST_BATCH), 1, 64)
@repeatable_option(
    *("--in-flight", "in_flight", click.IntRange(1)),
    help=f"Requests; closed loop.  [default: {', '.join(map(str, IN_FLIGHT))}; with --rate none]",
)
@repeatable_option("--rate", "rates", FiniteRange(0, min_open=True), help="Images/s; open loop.")
@repeatable_option("--protocol", "protocols", click.Choice(["grpc", "http"]), "grpc")
@repeatable_option(
    *("--shared-memory", "memories", click.Choice(["none", "system", "cuda"]), "none"),
    help="cuda needs --device cuda.",
)
@click.option("--seconds", type=FiniteRange(0.5), default=2, show_default=True, help="Per measurement.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--max-p99-ms", type=FiniteRange(0), default=100, show_default=True, help="p99 limit for a carried rate.")
@device_option
@checkpoint_options
@recorded("throughput", "saturated", "left_out")
def throughput(
    record: Record,
    models: Sequence[str],
    engines: Sequence[Any],
    precisions: Sequence[Any],
    sharings: Sequence[tuple[int, int]],
    batches: Sequence[int],
    in_flight: Sequence[int],
    rates: Sequence[float],
    protocols: Sequence[Any],
    memories: Sequence[Any],
    seconds: float,
    rounds: int,
    max_p99_ms: float,
    wanted: str,
    checkpoints: tuple[Path, ...],
    dataset: str | None,
    data_dir: Path | None,
) -> int:
    """Load the server with requests of --batch images, at a number in flight or at a rate, and compare with this
    process.

    NVIDIA's perf_analyzer sends them. --engine and --precision apply to both. The output names what this machine
    cannot run.
    """
    from benchmarks.load import by_perf_analyzer
    from benchmarks.load.compared_loads import run
    from benchmarks.load.published_candidates import device_of_server

    loads = _loads(batches, in_flight or (() if rates else IN_FLIGHT), rates, seconds)
    record.device = device = device_of_server(wanted)
    from_checkpoints = user_networks(checkpoints, dataset, data_dir)
    networks = [*map(shipped_network, models_to_measure(models, from_checkpoints)), *from_checkpoints]
    cells = [
        (
            Candidate(network, SERVED[engine], precision, threads, device),
            replace(load, protocol=protocol, shared_memory=memory, instances=instances),
        )
        for load, network, engine, precision, (instances, threads), protocol, memory in product(
            loads, networks, engines, precisions, sharings, protocols, memories
        )
    ]
    settings = {"seconds": seconds, "rounds": rounds, "max_p99_ms": max_p99_ms}
    by_perf_analyzer.program()
    for rows in run(cells, seconds, rounds):
        record.update([{**settings, **row} for row in rows])
    return int(any("wrong_answer" in row for row in record.rows))


def _loads(batches: Sequence[int], in_flight: Sequence[int], rates: Sequence[float], seconds: float) -> list[Workload]:
    """Closed and open loops. Raises UsageError if an open loop would send too few requests for its rate."""
    open_loops = [Workload(batch, rate=rate) for batch in batches for rate in sorted(rates)]
    for load in open_loops:
        if (requests := load.requests(seconds)) < MIN_REQUESTS:
            raise click.UsageError(
                f"--rate {load.rate:g} with --batch {load.batch}: expected {MIN_REQUESTS} requests or more in "
                f"{seconds:g} s, found {requests}; ask for more --seconds or a higher rate"
            )
    return [Workload(batch, count) for batch in batches for count in sorted(in_flight)] + open_loops


if __name__ == "__main__":
    throughput()
