from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure.results import Extras
from benchmarks.measure.tables import table
from benchmarks.reporting.page import Block, Table, Text, markdown

TITLE = "What preprocessing keeps of the accuracy"


def text(result: Mapping[str, Any]) -> str:
    return table(("condition", *result["sources"]), _cells(result))


def page(result: Mapping[str, Any]) -> list[Block]:
    count = result["images"]
    what = (
        f"Per cent right of {count} digits from each source, in every condition; one digit is {100 / count:g} points. "
        "Test images, strokes that the project draws and scikit-learn's digits of 8x8 pixels are laid on made-up "
        "paper; the shipped `vitbn`, trained on MNIST alone, reads what `clients/preprocess.py` makes of the picture."
    )
    rows = tuple(map(tuple, _cells(result)))
    return [Text(what), Text(f"    {result['command']}"), Table(("condition", *result["sources"]), rows)]


def _cells(result: Mapping[str, Any]) -> list[list[str]]:
    return [
        [row["condition"], *(f"{row[source]:.0f}" if source in row else "" for source in result["sources"])]
        for row in result["rows"]
    ]


def beside(folder: Path | None) -> Extras:
    return lambda result: {folder / "conditions.md": markdown(TITLE, page(result)).encode()} if folder else {}
