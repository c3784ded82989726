"""In: the folder of `vitbn study norms`. Out: images a second of its networks, with all rewrites that apply."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks.measure.options import seconds_option
from benchmarks.measure.run import Record, Row
from benchmarks.reporting.recorded_command import recorded
from benchmarks.studies.grids import FOLDING

LEARNED = 0.5  # networks below it failed to learn; their logits may be too large for the proof


@click.command()
@click.argument("study", type=click.Path(path_type=Path))
@seconds_option(60, "At most, to measure; three rounds in any case.")
@recorded("norms")
def norms(record: Record, study: Path, seconds: float) -> None:
    """Time the networks that `vitbn study norms --output STUDY` trained, with all rewrites that apply."""
    from benchmarks.measure.speeds import measure
    from models.checkpoints.checkpoint import load

    studied = study_rows(study)
    learned = [row for row in studied.values() if row["test_accuracy"] > LEARNED]
    if not learned:
        expected = f"a network with an accuracy above {100 * LEARNED:g} %"
        raise click.ClickException(f"{study / 'norms.json'}: expected {expected}, found none")
    checkpoints = [load(study / "runs" / row["checkpoint"]) for row in learned]
    measure(checkpoints, seconds, lambda rows: record.update(compared(rows, studied)))


def compared(rows: Sequence[Row], studied: Mapping[str, Row]) -> list[Row]:
    """Adds what the study says, and the speed relative to LayerNorm."""
    layer_norm_ms = next((row["p50_ms"] for row in rows if row["model"] == "vit"), None)
    return [
        {
            **row,
            "folds": studied[row["model"]]["folds"],
            "speedup_over_layer_norm": layer_norm_ms and layer_norm_ms / row["p50_ms"],
        }
        for row in rows
    ]


def study_rows(study: Path) -> dict[str, dict[str, Any]]:
    """Model -> checkpoint, accuracy and whether its norms fold, of the first seed at the usual rate.

    Raises ClickException.
    """
    path = study / "norms.json"
    try:
        runs = {
            run["at"]["norm"]: run
            for run in json.loads(path.read_bytes())["runs"]
            if (run["at"]["way"], run["options"]["seed"]) == ("usual", 0)
        }
        return {
            model: {
                "checkpoint": f"{run['label']}.safetensors",
                "test_accuracy": run["series"][-1]["test_accuracy"] if run["series"] else 0.0,
                "folds": model in FOLDING,
            }
            for model, run in runs.items()
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{path}: expected the result of vitbn study norms, found {error!r}") from error
