"""In: scenarios against a local `vitbn serve --servers 2`.

Out: a JSON row each: requests sent, right, wrong, refused and failed, and latencies in ms; others for `hostile` and
`added`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.measure.choices import FiniteRange, Result

if TYPE_CHECKING:
    from benchmarks.load.behind_proxy import Row

FAULTS = ("server-killed", "stub-killed", "restart", "publish")
NAMES = (*FAULTS, "hostile", "overload", "added")


@click.command()
@click.option("--scenario", "names", type=click.Choice(NAMES), multiple=True, help="Repeatable.  [default: all]")
@click.option("--requests", type=click.IntRange(100, 1_000_000), default=10_000, show_default=True)
@click.option("--overload-seconds", type=FiniteRange(1, 120), default=10.0, show_default=True)
@click.option("--json", "path", type=Result(), help="Write the result here.")
def proxy(names: tuple[str, ...], requests: int, overload_seconds: float, path: Path | None) -> None:
    """Break or update one of two servers behind the proxy and count what its clients see."""
    from benchmarks.load.behind_proxy import BehindProxy
    from benchmarks.load.verdicts import in_a_line
    from benchmarks.measure.machine import cores
    from benchmarks.measure.run import recording

    with recording(path, cores()) as record, BehindProxy(requests, overload_seconds) as bench:
        rows: list[Row] = []
        for name in names or NAMES:
            for protocol in ("http", "grpc") if name in FAULTS else ("http",):
                rows.append(bench.run(name, protocol))
                click.echo(in_a_line(rows[-1]))
                record.update(rows)
