"""In: a machine. Out: whether it gives the same times again; `make benchmarks` checks that before it measures."""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.measure.choices import json_option, seconds_option
from benchmarks.measure.devices import cores

UNSTEADY = 5  # exit code


@click.command()
@seconds_option(60, "How long to watch; two cores may work as one for as long.")
@click.option("--anyway", is_flag=True, help="End with exit code 0 on an unsteady machine, too.")
@json_option
@click.pass_context
def steady(context: click.Context, seconds: float, anyway: bool, json_path: Path | None) -> None:
    """Watch whether this machine is steady: two threads against one, windows of products and of single images.

    Ends with exit code 5 if it is not. A result that is written beside the file says so, too.
    """
    from benchmarks.measure.network import shipped_network
    from benchmarks.measure.progress import share_bar
    from benchmarks.measure.run import recording
    from benchmarks.measure.steadiness import watch
    from benchmarks.reporting.tables import show
    from export.graph import Form
    from export.pipeline import export_checkpoint

    network, threads = shipped_network("vitbn"), cores()
    with recording(json_path, threads) as record:
        data = export_checkpoint(network.path, Form(rewrites="all")).onnx
        with share_bar("watching the machine") as bar:
            found = watch(data, network.examples(1), threads, seconds, bar)
        record.add(found.row())
        click.echo(show(record.run(), "steady"))
    if found.reasons():
        click.echo(f"Not steady: {'; '.join(found.reasons())}", err=True)
        context.exit(0 if anyway else UNSTEADY)
    click.echo("Steady")


if __name__ == "__main__":
    steady()
