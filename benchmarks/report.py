from __future__ import annotations

from pathlib import Path

import click

JSON_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def report() -> None:
    """Make one page of the benchmarks' results, or compare two of them."""


@report.command()
@click.argument("results", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Folder for the pages and plots.")
def build(results: Path, output: Path) -> None:
    """Write report.md and report.html, with every plot, from the JSON files in the folder RESULTS."""
    from benchmarks.reporting.build import write
    from benchmarks.reporting.sources import ReportError, find

    try:
        paths = write(find(results), output)
    except (ReportError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Wrote {', '.join(path.name for path in paths)} in {output}")


@report.command()
@click.argument("before", type=JSON_FILE)
@click.argument("after", type=JSON_FILE)
def compare(before: Path, after: Path) -> None:
    """Show which rows of AFTER are faster or slower than in BEFORE, and which are the same within their noise."""
    from benchmarks.measure.tables import table
    from benchmarks.reporting.compare import changes, differences
    from benchmarks.reporting.sources import ReportError

    try:
        header, rows = changes(before, after)
        warnings = list(differences(before, after))
    except ReportError as error:
        raise click.ClickException(str(error)) from error
    for line in warnings:
        click.echo(f"Warning: {line}", err=True)
    click.echo(table(header, rows))


if __name__ == "__main__":
    report()
