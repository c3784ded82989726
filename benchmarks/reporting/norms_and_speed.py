from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.measure.results import Extras
from benchmarks.reporting import study_page
from models.plots.results import Column, footnote, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "norms-measured"


def fields(rows: list[dict[str, Any]], studied: Mapping[str, dict[str, Any]], count: int) -> dict[str, Any]:
    """`studied`: the study's rows by model."""
    layer_norm_ms = next((row["p50_ms"] for row in rows if row["model"] == "vit"), None)
    columns = [
        Column("model"),
        Column("norms left"),
        Column("test accuracy %, seed 0", 2),
        Column("training, of ViT's time", 2),
        Column("M MACs an image", 2),
        Column("images/s", 0),
        Column("time of ViT over its own", 2),
        Column("best way"),
    ]
    derived = [
        dict(row)
        | {
            "folds": studied[row["model"]]["folds"],
            "of_layer_norm_training": studied[row["model"]]["of_layer_norm"],
            "speedup_over_layer_norm": layer_norm_ms and layer_norm_ms / row["p50_ms"],
        }
        for row in rows
    ]
    cells = [
        [
            row["model"],
            "none" if row["folds"] else "all",
            100 * row["test_accuracy"],
            row["of_layer_norm_training"],
            row["macs"] / 1e6,
            row["images_per_s"],
            row["speedup_over_layer_norm"],
            row["way"],
        ]
        for row in derived
    ]
    absent = [name for name in studied if name not in {row["model"] for row in rows}]
    return {
        "question": "What does each normalisation cost at inference, once everything that folds is folded?",
        "scope": {"images": count, "reduced": ""},
        "timing": study_page.timing(rows, count),
        "derived": derived,
        "tables": [table("The networks of the study, with all rewrites that apply to each", columns, cells)],
        "notes": [f"Not measured, because training failed in the study: {', '.join(absent)}."] if absent else [],
    }


def plots(result: dict[str, Any]) -> Mapping[str, Figure]:
    from models.plots.figures import NAMES, legend, row_of_panels, style

    title = "Inference by norm, all that folds folded"
    figure, (axes,) = row_of_panels(title, footnote(result), [""], "images a second, rewritten", "", (8.0, 4.2))
    for place, row in enumerate(result["derived"]):
        colour = style(row["model"])["color"]
        axes.barh(place, row["images_per_s"], color=colour if row["folds"] else "#ffffff", edgecolor=colour)
        text = f"{row['images_per_s']:,.0f}, {100 * row['test_accuracy']:.2f} % right"
        axes.annotate(text, (row["images_per_s"], place), (4, -3), textcoords="offset points")
    axes.barh([0], [0], color="#777777", label="no norm is left")
    axes.barh([0], [0], color="#ffffff", edgecolor="#777777", label="its norms stay")
    axes.set_yticks(range(len(result["derived"])), [NAMES[row["model"]] for row in result["derived"]])
    axes.margins(x=0.35)
    axes.set_xlim(left=0)
    legend(figure, axes)
    return {"speed": figure}


def beside(folder: Path) -> Extras:
    return study_page.beside(folder, NAME, plots)
