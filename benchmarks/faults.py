"""In: scenarios against local servers, most of them supervised.

Out: for each scenario a JSON row: requests sent, right, wrong, refused and failed; p50, p99 and worst latency of right
answers in ms; seconds until answers were right again; memory in MB.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import click

from benchmarks.drills import environment_faults, server_faults, version_faults
from benchmarks.drills.checked_requests import record_each
from benchmarks.drills.control_calls import foreign_calls
from benchmarks.drills.drill_setup import Drill, DrillBench, stubs, triton
from benchmarks.drills.mixed_texts import mixed_texts
from benchmarks.measure.result_file import Record
from benchmarks.reporting.recorded_decorator import recorded
from common.finite_range import FiniteRange

DRILLS: Mapping[str, Drill] = {
    "stub-killed": partial(server_faults.heal, fault=lambda server: stubs(server)[0].kill()),
    "stub-stopped": partial(server_faults.heal, fault=lambda server: stubs(server)[0].suspend()),
    "server-killed": partial(server_faults.heal, fault=lambda server: triton(server).kill()),
    "server-killed-retries": server_faults.killed_under_clients,
    "nested-json": partial(server_faults.heal, fault=partial(server_faults.post, name="150,000 open brackets")),
    "huge-shape": partial(server_faults.heal, fault=partial(server_faults.post, name="huge shape with JSON data")),
    "newest-broken": version_faults.newest_broken,
    "sigterm": server_faults.sigterm,
    "overload": server_faults.overload,
    "publish": server_faults.publications,
    "slow-connections": lambda bench: server_faults.slow_connections(),
    "foreign-calls": foreign_calls,
    "lone-requests": lambda bench: server_faults.lone_requests(),
    "mixed-texts": lambda bench: mixed_texts(),
    "no-home": environment_faults.no_home,
    "few-descriptors": environment_faults.few_descriptors,
    "answers-nan": version_faults.answers_nan,
    "lying-version": version_faults.lying_version,
    "disk-full": environment_faults.disk_full,
    "clock-jump": environment_faults.clock_jump,
    "slow-probe": environment_faults.slow_probe,
    "two-supervisors": environment_faults.two_supervisors,
    "many-faults": environment_faults.many_faults,
}
TEN_MINUTES = "many-faults"  # takes ten minutes, so it runs only if --scenario names it


@click.command()
@click.option("--scenario", "names", type=click.Choice(list(DRILLS)), multiple=True, help="Repeatable.  [default: all]")
@click.option("--hours", type=FiniteRange(0.001, 48), help="Steady requests for this long; alone without --scenario.")
@recorded()
def faults(record: Record, names: tuple[str, ...], hours: float | None) -> None:
    """Break a real server in known ways and count what its clients see."""
    default = [] if hours else [name for name in DRILLS if name != TEN_MINUTES]
    drills: Mapping[str, Drill] = {**DRILLS, "soak": partial(server_faults.soak, hours=hours or 0)}
    chosen = [*(names or default), *(["soak"] if hours else [])]
    with DrillBench() as bench:
        record_each(record, ({"scenario": name, **drills[name](bench)} for name in chosen))


if __name__ == "__main__":
    faults()
