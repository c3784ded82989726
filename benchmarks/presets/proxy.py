"""Runs scenarios against a local `vitbn serve --servers 2`.

Out: a row for each scenario and protocol: requests sent, right, wrong, refused and failed, and latencies in ms.
`hostile` and `added` have other figures.
"""

from __future__ import annotations

import click

from benchmarks.drills.checked_requests import record_each
from benchmarks.drills.faults_behind_proxy import EVENTS, OVER_HTTP, BehindProxy
from benchmarks.measure.result_file import Record
from benchmarks.reporting.recorded_decorator import recorded

NAMES = (*EVENTS, *OVER_HTTP)


@click.command()
@click.option("--scenario", "names", type=click.Choice(NAMES), multiple=True, help="Repeatable.  [default: all]")
@recorded()
def proxy(record: Record, names: tuple[str, ...]) -> None:
    """Break or update one of two servers behind the proxy and count what its clients see."""
    with BehindProxy() as bench:
        for name in names or NAMES:
            protocols = ("http", "grpc") if name in EVENTS else ("http",)
            record_each(record, (bench.run(name, protocol) for protocol in protocols))
