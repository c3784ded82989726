"""docs/claims.md: its tables and pictures.

In: the page, whose prose and verdicts are written by hand, and the studies' JSON files. Out: the page with the tables
of `benchmarks.studies.published` between their markers (`<!-- table NAME -->` to `<!-- end -->`), and its pictures.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.reporting.figures import png
from benchmarks.studies.page import StudyError, Table
from benchmarks.studies.published import PICTURES, TABLES
from benchmarks.studies.results import Results
from models.files import write_atomically


def rows_of(name: str, results: Results) -> list[list[str]]:
    header, *rows = TABLES[name]
    return [[str(cell) for cell in header], *map(results.row, rows)]


def fill(page: str, results: Results) -> str:
    """The page with all of TABLES; raises StudyError for a missing or an unknown marker."""
    there = sorted(re.findall(r"^<!-- table (\S+) -->$", page, re.MULTILINE))
    if there != sorted(TABLES):
        raise StudyError(f"claims: expected the tables {', '.join(sorted(TABLES))}, found {', '.join(there)}")

    def table(part: re.Match[str]) -> str:
        header, *rows = rows_of(part[2], results)
        lines = "\n".join(Table("", [(name, None) for name in header], rows).markdown())
        return f"{part[1]}\n{lines}\n\n{part[3]}"

    return re.sub(r"^(<!-- table (\S+) -->\n).*?^(<!-- end -->)$", table, page, flags=re.DOTALL | re.MULTILINE)


def write(page: Path, folder: Path) -> list[Path]:
    results = Results(folder)
    filled = fill(page.read_text(), results)
    pictures = {page.with_suffix("") / f"{name}.png": make(results) for name, make in PICTURES.items()}
    for path, picture in pictures.items():
        if drawn_from(path) != picture.digest():
            write_atomically(path, png(picture.draw(), picture.digest()))
    write_atomically(page, filled.encode())
    return [page, *pictures]


def drawn_from(path: Path) -> str | None:
    """The digest of the data of a picture."""
    from PIL import Image

    if not path.exists():
        return None
    with Image.open(path) as picture:
        return picture.info.get("Source")
