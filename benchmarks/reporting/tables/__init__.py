"""The tables of pages and terminals. In: a result, or two. Out: a table, or lines of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from benchmarks.measure.result_file import Run
from benchmarks.reporting.tables import (
    accuracies,
    foreign,
    latencies,
    network_comparison,
    saturation,
    servers,
)
from benchmarks.reporting.tables.table import Table

# Name in a page's marker -> function that makes the table.
TABLES: Mapping[str, Callable[..., Table | str]] = {
    function.__name__: function
    for function in (
        *(
            network_comparison.rewrites,
            network_comparison.pairs,
            network_comparison.limit,
            network_comparison.worth,
            network_comparison.frontier,
            network_comparison.choice,
        ),
        *(network_comparison.billion, network_comparison.norms, foreign.foreign, foreign.decoders),
        *(foreign.packed, foreign.texts),
        *(latencies.latency, latencies.by_model, latencies.rewritten, latencies.left_out),
        *(latencies.sweep, latencies.operators, latencies.engines),
        *(accuracies.accuracy, accuracies.conditions, accuracies.brought),
        *(servers.added, servers.streamed, servers.throughput),
        *(saturation.saturated, servers.machines, servers.beside, servers.drills, servers.shares, servers.counts),
        latencies.steady,
    )
} | {
    "foreign_speeds": partial(foreign.foreign, intervals=False),
    "decoder_speeds": partial(foreign.decoders, intervals=False),
    "packed_speeds": partial(foreign.packed, intervals=False),
    "gpu_speeds": partial(latencies.by_model, runtimes=latencies.GPU_SPEEDS),
}


def show(run: Run, *names: str) -> str:
    """The tables of the run as text for a terminal, without empty ones."""
    tables = (TABLES[name](run) for name in names)
    texts = (table.plain if isinstance(table, Table) else table for table in tables)
    return "\n".join(filter(None, texts))
