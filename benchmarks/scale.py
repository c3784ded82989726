"""A fleet of servers under a day's load with failures.

In: service times of two real servers. Out as JSON: these two measured and simulated, and larger fleets simulated.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click

from benchmarks.measure.choices import FiniteRange, Result

SERVERS = (10, 100, 1000)
PEAKS = (0.5, 0.7, 0.9)  # of the fleet's capacity, at the busiest hour
DAY_S = 86_400


@click.command()
@click.option("--measured", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="An earlier result.")
@click.option("--seconds", type=FiniteRange(1, 600), default=30.0, show_default=True, help="Of each measurement.")
@click.option("--requests", type=click.IntRange(100), default=40_000, show_default=True, help="At the busiest hour.")
@click.option("--json", "path", type=Result(), help="Write the result here.")
def scale(measured: Path | None, seconds: float, requests: int, path: Path | None) -> None:
    """Measure two servers, simulate them, and simulate 10, 100 and 1,000."""
    from benchmarks.load.simulation import Fleet, simulate, simulate_day
    from benchmarks.load.two_servers import measure
    from benchmarks.measure.machine import cores
    from benchmarks.measure.results import recording

    earlier = _earlier(measured) if measured else None
    with recording("scale", path, cores()) as record:
        two = earlier or measure(seconds)
        service_ms = two["service_ms"]
        for row in two["rows"]:
            row["simulated"] = simulate(service_ms, Fleet(2), row["rate"], requests).row()
            _print("two servers", row)
        record.update({"two_servers": two})
        rows = []
        for servers in SERVERS:
            capacity = servers * 1e3 * len(service_ms) / sum(service_ms)
            fleet = Fleet(servers, between_failures_s=DAY_S)
            for peak in PEAKS:
                day = simulate_day(service_ms, fleet, peak * capacity, requests)
                rows.append({"servers": servers, "peak": peak, "peak_rate": peak * capacity} | day.row())
                _print("day", rows[-1])
                record.update({"days": rows})


def _earlier(path: Path) -> dict[str, Any]:
    try:
        two: dict[str, Any] = json.loads(path.read_bytes())["two_servers"]
        numbers = [*two["service_ms"], *(row["rate"] for row in two["rows"])]
        if not two["service_ms"] or not all(0 < number < math.inf for number in numbers):  # NaN would never end
            raise ValueError("no service times, or numbers that are not above 0")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{path}: expected a result of benchmarks/scale.py, found {error!r}") from error
    return two


def _print(title: str, row: dict[str, object]) -> None:
    texts = [f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()]
    click.echo(f"{title}: " + "  ".join(texts))


if __name__ == "__main__":
    scale()
