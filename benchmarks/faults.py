"""In: scenarios against local servers, most of them supervised.

Out: a JSON row each: requests sent, right, wrong, refused and failed; p50, p99 and worst latency of right answers in
ms; seconds until answers were right again; memory in MB.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from benchmarks.measure.choices import json_option
from models.training.command_options import FiniteRange

NAMES = (
    "stub-killed",
    "stub-stopped",
    "server-killed",
    "server-killed-retries",
    "nested-json",
    "huge-shape",
    "newest-broken",
    "sigterm",
    "overload",
    "publish",
    "slow-connections",
    "foreign-calls",
    "lone-requests",
    "mixed-texts",
    "answers-nan",
    "lying-version",
    "no-home",
    "few-descriptors",
    "disk-full",
    "clock-jump",
    "slow-probe",
    "two-supervisors",
)
EVERY = (*NAMES, "many-faults")  # the last takes ten minutes: only by name


@click.command()
@click.option("--scenario", "names", type=click.Choice(EVERY), multiple=True, help="Repeatable.  [default: all]")
@click.option("--hours", type=FiniteRange(0.001, 48), help="Steady requests for this long; alone without --scenario.")
@json_option
def faults(names: tuple[str, ...], hours: float | None, json_path: Path | None) -> None:
    """Break a real server in known ways and count what its clients see."""
    from benchmarks.drills.bench import DrillBench
    from benchmarks.drills.server_faults import drills, soak
    from benchmarks.drills.verdicts import keep
    from benchmarks.measure.devices import cores
    from benchmarks.measure.run import recording

    chosen = list(names or (() if hours else NAMES)) + (["soak"] if hours else [])
    runs = drills() | {"soak": partial(soak, hours=hours or 0)}
    with recording(json_path, cores()) as record, DrillBench() as bench:
        keep(record, ({"scenario": name, **runs[name](bench)} for name in chosen))


if __name__ == "__main__":
    faults()
