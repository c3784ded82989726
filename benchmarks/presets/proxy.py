"""In: scenarios against a local `vitbn serve --servers 2`.

Out: a JSON row each: requests sent, right, wrong, refused and failed, and latencies in ms; other figures for `hostile`
and `added`.
"""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.measure.choices import json_option

FAULTS = ("server-killed", "stub-killed", "restart", "publish")
NAMES = (*FAULTS, "hostile", "overload", "added")


@click.command()
@click.option("--scenario", "names", type=click.Choice(NAMES), multiple=True, help="Repeatable.  [default: all]")
@json_option
def proxy(names: tuple[str, ...], json_path: Path | None) -> None:
    """Break or update one of two servers behind the proxy and count what its clients see."""
    from benchmarks.drills.behind_proxy import BehindProxy
    from benchmarks.drills.verdicts import keep
    from benchmarks.measure.devices import cores
    from benchmarks.measure.run import recording

    with recording(json_path, cores()) as record, BehindProxy() as bench:
        both = [(name, protocol) for name in names or NAMES for protocol in ("http", "grpc")]
        keep(record, (bench.run(*each) for each in both if each[0] in FAULTS or each[1] == "http"))
