"""In: this machine. Out: whether it gives the same times again. `make benchmarks` runs this command first."""

from __future__ import annotations

import click

from benchmarks.measure.devices import cores
from benchmarks.measure.options import seconds_option
from benchmarks.measure.result_file import Record
from benchmarks.reporting.recorded_decorator import recorded

UNSTEADY = 5  # exit code


@click.command()
@seconds_option(60, "How long to watch; cores that others share may work as one for as long.")
@click.option("--anyway", is_flag=True, help="End with exit code 0 on an unsteady machine, too.")
@recorded("steady")
def steady(record: Record, seconds: float, anyway: bool) -> int:
    """Watch whether this machine gives the same times again, for matrix products and for single images.

    Ends with exit code 5 if it does not. Results that are written to the same folder say so, too.
    """
    from benchmarks.measure.measured_network import rewrite_checkpoint, shipped_network
    from benchmarks.measure.progress import share_bar
    from benchmarks.measure.steadiness import watch

    network = shipped_network("vitbn")
    data = rewrite_checkpoint(network.path).onnx
    with share_bar("watching the machine") as bar:
        row = watch(data, network.examples(1), cores(), seconds, bar)
    record.add(row)
    if reasons := row["reasons"]:
        click.echo(f"Not steady: {'; '.join(reasons)}", err=True)
        return 0 if anyway else UNSTEADY
    click.echo("Steady")
    return 0


if __name__ == "__main__":
    steady()
