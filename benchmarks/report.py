"""In: results. Out: the tables and pictures of the pages, or the rows that differ between two results."""

from __future__ import annotations

from pathlib import Path

import click

from vitbn_packages import one_line_errors

RESULTS = Path(__file__).parent / "results"
JSON_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def report() -> None:
    """Write the tables of the pages from results, or compare two results."""


@report.command()
@click.argument("results", type=click.Path(exists=True, file_okay=False, path_type=Path), default=RESULTS)
@click.option("--check", is_flag=True, help="Write nothing; fail if a page differs from its results.")
@one_line_errors()
def build(results: Path, check: bool) -> None:
    """Write report.md and its pictures into the folder RESULTS, by default the project's, with its other pages."""
    from benchmarks.reporting.pages import contents, pictures
    from common.files import write_atomically

    texts = contents(results)
    if check:
        _compare(texts)
        return
    files = {path: text.encode() for path, text in texts.items()}
    files |= {path: draw() for path, draw in pictures(results)}
    for path, content in files.items():
        write_atomically(path, content)
    click.echo(f"Wrote {', '.join(path.name for path in files)}")


def _compare(texts: dict[Path, str]) -> None:
    """Raises ClickException if a page is not as in `texts`."""
    stale = [path for path, text in texts.items() if not path.is_file() or path.read_text("utf-8") != text]
    if stale:
        names = ", ".join(map(str, stale))
        raise click.ClickException(f"{names}: expected the tables of the results, found others; run make report")


@report.command()
@click.argument("before", type=JSON_FILE)
@click.argument("after", type=JSON_FILE)
@one_line_errors()
def compare(before: Path, after: Path) -> None:
    """Show which rows of AFTER are faster or slower than in BEFORE, and which are the same within their noise."""
    from benchmarks.reporting.compare_results import changes, differences

    table = changes(before, after)
    for line in differences(before, after):
        click.echo(f"Warning: {line}", err=True)
    click.echo(table.plain)


if __name__ == "__main__":
    report()
