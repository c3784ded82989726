"""Writes the tables and pictures of docs/claims.md, which claims_tables.py and claims_pictures.py hold as data.

In: the page, whose prose and verdicts are written by hand, and the studies' JSON files. Out: the page with the tables
between their markers (`<!-- table NAME -->` to `<!-- end -->`), and its pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.reporting.pages import fill, marker_words
from benchmarks.reporting.plotting import png
from benchmarks.reporting.tables.table import Table
from benchmarks.studies.claims_pictures import PICTURES
from benchmarks.studies.claims_tables import TABLES
from benchmarks.studies.results import Results
from benchmarks.studies.study_writer import StudyError
from common.files import regular, write_atomically


def rows_of(name: str, results: Results) -> list[list[str]]:
    """The table's header and its rows, as texts."""
    header, *rows = TABLES[name]
    return [[str(cell) for cell in header], *map(results.row, rows)]


def filled(page: str, results: Results) -> str:
    """The text `page` with all of TABLES. Raises StudyError for a missing or an unknown marker."""
    marked = sorted(marker_words(page, "table"))
    if marked != sorted(TABLES):
        raise StudyError(f"claims: expected the tables {', '.join(sorted(TABLES))}, found {', '.join(marked)}")

    def table(words: Sequence[str]) -> str:
        header, *rows = rows_of(words[0], results)
        return Table([dict(zip(header, row, strict=True)) for row in rows]).markdown

    return fill(page, {"table": table})


def write(page: Path, folder: Path) -> list[Path]:
    """Writes the page, and the pictures that no longer show the results in `folder`. Returns the paths of all.

    Drawing takes seconds, so a picture holds the digest of its data.
    """
    results = Results(folder)
    text = filled(regular(page).read_text("utf-8", "surrogateescape"), results)
    pictures = {page.with_suffix("") / f"{name}.png": make(results) for name, make in PICTURES.items()}
    for path, picture in pictures.items():
        if drawn_from(path) != picture.digest():
            write_atomically(path, png(picture.draw(), picture.digest()))
    write_atomically(page, text.encode(errors="surrogateescape"))
    return [page, *pictures]


def drawn_from(path: Path) -> str | None:
    """The digest of the data that the picture at `path` shows; None if there is no file."""
    from PIL import Image

    if not path.exists():
        return None
    with Image.open(path) as picture:
        return picture.info.get("Source")
