"""In: scenarios against a local `vitbn serve --servers 2`.

Out: a JSON row each: requests sent, right, wrong, refused and failed, and latencies in ms; other figures for `hostile`
and `added`.
"""

from __future__ import annotations

import click

from benchmarks.drills.behind_proxy import EVENTS, OVER_HTTP, BehindProxy
from benchmarks.drills.verdicts import keep
from benchmarks.measure.run import Record
from benchmarks.reporting.recorded_command import recorded

NAMES = (*EVENTS, *OVER_HTTP)


@click.command()
@click.option("--scenario", "names", type=click.Choice(NAMES), multiple=True, help="Repeatable.  [default: all]")
@recorded()
def proxy(record: Record, names: tuple[str, ...]) -> None:
    """Break or update one of two servers behind the proxy and count what its clients see."""
    with BehindProxy() as bench:
        both = [(name, protocol) for name in names or NAMES for protocol in ("http", "grpc")]
        keep(record, (bench.run(*each) for each in both if each[0] in EVENTS or each[1] == "http"))
