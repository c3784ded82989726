"""The result of benchmarks/frontier.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure.results import Extras
from benchmarks.reporting import study_page
from models.plots.results import Column, footnote, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "frontier-measured"


def fields(rows: list[dict[str, Any]], count: int) -> dict[str, Any]:
    columns = [
        Column("checkpoint"),
        Column("model"),
        Column("depth", 0),
        Column("test accuracy %", 2),
        Column("M MACs an image", 2),
        Column("images/s", 0),
        Column("best way"),
    ]
    cells = [
        [
            *(row[name] for name in ("checkpoint", "model", "depth")),
            *(100 * row["test_accuracy"], row["macs"] / 1e6, row["images_per_s"], row["way"]),
        ]
        for row in rows
    ]
    title = "Networks after all rewrites that apply, in ONNX Runtime, float32, each in its best way"
    return {
        "question": "Which network for which speed?",
        "scope": {"images": count, "reduced": ""},
        "timing": study_page.timing(rows, count),
        "derived": rows,
        "tables": [table(title, columns, cells)],
        "notes": [],
    }


def plots(result: dict[str, Any]) -> Mapping[str, Figure]:
    from models.plots.figures import accuracy_over_cost

    measured = [
        (row["model"], _label(row), row["images_per_s"], 100 * row["test_accuracy"]) for row in result["derived"]
    ]
    title = "What accuracy costs in speed"
    speed = "images a second, rewritten, on this machine"
    return {"accuracy-speed": accuracy_over_cost(title, footnote(result), measured, speed)}


def _label(row: Mapping[str, Any]) -> str:
    """What the checkpoint's name says beyond its model, else the depth."""
    added = Path(row["checkpoint"]).stem.removeprefix(row["model"]).strip("-")
    return added or (f"depth {row['depth']}" if row["depth"] else "")


def beside(folder: Path) -> Extras:
    return study_page.beside(folder, NAME, plots)
