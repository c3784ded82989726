"""Command line: what each norm costs at inference, once everything that folds is folded.

The networks of `models/study.py norms` are rewritten, exported and proved; each then classifies the same images in the
way that suits it best, and all take turns in one run. Beside the time stands what the study found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.ways import SEARCH_IMAGES, cores

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "norms-measured"
LEARNED = 0.5  # test accuracy; the logits of a network that did not learn may be of any size, and too large to prove


class NormsError(Exception):
    """A folder without the study; the message says what was expected and what was found."""


@click.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--images", "count", type=click.IntRange(SEARCH_IMAGES), default=5000, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(1), default=60, show_default=True, help="To measure; 3 rounds at least."
)
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Folder for the JSON, table and plot.")
def norms(study: Path, count: int, seconds: float, output: Path) -> None:
    """Time the networks that `models/study.py norms --output STUDY` trained, with all rewrites that apply."""
    from benchmarks.frontier import measure
    from export.equivalence import EquivalenceError
    from export.rewrites.errors import RewriteError
    from models.checkpoint import CheckpointError, load
    from models.studies import results

    try:
        found = study_rows(study)
        learned = [row for row in found.values() if (row["usual"]["test_accuracy"] or 0) > LEARNED]
        rows = measure([load(study / "runs" / row["checkpoint"]) for row in learned], count, seconds)
        paths = results.write(output, result(rows, found, count, seconds), plots)
    except (CheckpointError, NormsError, EquivalenceError, RewriteError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Wrote {', '.join(path.name for path in paths)} in {output}")


def study_rows(study: Path) -> dict[str, dict[str, Any]]:
    """By model, what the study found; raises NormsError where there is none."""
    path = study / "norms.json"
    try:
        return {row["model"]: row for row in json.loads(path.read_bytes())["derived"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NormsError(f"{path}: expected the result of models/study.py norms, found {error!r}") from error


def result(
    rows: Sequence[dict[str, Any]], found: Mapping[str, dict[str, Any]], count: int, seconds: float
) -> dict[str, Any]:
    """The content of the JSON file; `rows` are those of `benchmarks.frontier.measure`."""
    from models.environment import describe
    from models.studies.results import Column, table

    layer_norm_ms = next(row["p50_ms"] for row in rows if row["model"] == "vit")
    columns = [
        Column("model"),
        Column("norms left"),
        Column("test accuracy %", 2),
        Column("accuracy % at a high rate", 2),
        Column("training, of ViT's time", 2),
        Column("M MACs an image", 2),
        Column("images/s", 0),
        Column("time of ViT over its own", 2),
        Column("best way"),
    ]
    derived = [
        dict(row)
        | {
            "folds": found[row["model"]]["folds"],
            "high_rate_accuracy": found[row["model"]]["high"]["test_accuracy"],
            "of_layer_norm_training": found[row["model"]]["of_layer_norm"],
            "speedup_over_layer_norm": layer_norm_ms / row["p50_ms"],
        }
        for row in rows
    ]
    cells = [
        [
            row["model"],
            "none" if row["folds"] else "all",
            100 * row["test_accuracy"],
            None if row["high_rate_accuracy"] is None else 100 * row["high_rate_accuracy"],
            row["of_layer_norm_training"],
            row["macs"] / 1e6,
            row["images_per_s"],
            row["speedup_over_layer_norm"],
            row["way"],
        ]
        for row in derived
    ]
    rounds = len(rows[0]["samples_ns"])
    absent = [name for name in found if name not in {row["model"] for row in rows}]
    notes = [f"Not measured, for they did not learn in the study: {', '.join(absent)}."] if absent else []
    return {
        "study": NAME,
        "question": "What does each normalisation cost at inference, once everything that folds is folded?",
        "command": f"python benchmarks/norms.py STUDY --images {count} --seconds {seconds:g} --output DIR",
        "scope": {"images": count, "reduced": ""},
        "timing": f"Medians of {rounds} interleaved rounds, {count:,} images each, ONNX Runtime, all rewrites.",
        "environment": describe(cores(), "cpu"),
        "derived": derived,
        "tables": [table("The networks of the study, with all rewrites that apply to each", columns, cells)],
        "notes": notes,
    }


def plots(result: dict[str, Any]) -> Mapping[str, Figure]:
    """A bar a norm: images a second."""
    from models.studies.figures import NAMES, legend, row_of_panels, style
    from models.studies.results import footnote

    title = "Inference by norm, all that folds folded"
    figure, (axes,) = row_of_panels(title, footnote(result), [""], "images a second, rewritten", "", (8.0, 4.2))
    for place, row in enumerate(result["derived"]):
        colour = style(row["model"])["color"]
        axes.barh(place, row["images_per_s"], color=colour if row["folds"] else "#ffffff", edgecolor=colour)
        said = f"{row['images_per_s']:,.0f}, {100 * row['test_accuracy']:.2f} % right"
        axes.annotate(said, (row["images_per_s"], place), (4, -3), textcoords="offset points")
    axes.barh([0], [0], color="#777777", label="no norm is left")
    axes.barh([0], [0], color="#ffffff", edgecolor="#777777", label="its norms stay")
    axes.set_yticks(range(len(result["derived"])), [NAMES[row["model"]] for row in result["derived"]])
    axes.margins(x=0.35)
    axes.set_xlim(left=0)
    legend(figure, axes)
    return {"speed": figure}


if __name__ == "__main__":
    norms()
