"""Times the networks of `vitbn study norms`. In: the study's folder. Out: images a second, with all rewrites."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.measure.options import seconds_option
from benchmarks.measure.result_file import Record, Row
from benchmarks.reporting.recorded_decorator import recorded
from benchmarks.studies.grids import FOLDING
from common.given_path import GivenPath

LEARNED = 0.5  # least test accuracy: other networks failed to learn, and their logits may be too large for the proof


@click.command()
@click.argument("study", type=GivenPath(path_type=Path))
@seconds_option(60, "At most, to measure; three rounds in any case.")
@recorded("norms")
def norms(record: Record, study: Path, seconds: float) -> None:
    """Time the networks that `vitbn study norms --output STUDY` trained, with all rewrites that apply."""
    from benchmarks.measure.checkpoint_speeds import measure
    from models.checkpoints.checkpoint import load

    checkpoints = [load(study / "runs" / f"{label}.safetensors") for label in learned(study)]
    measure(checkpoints, seconds, lambda rows: record.update(relative_to_layer_norm(rows)))


def relative_to_layer_norm(rows: Sequence[Row]) -> list[Row]:
    """The measured rows with their speed relative to LayerNorm, and with whether the network's norms fold."""
    layer_norm_ms = next((row["p50_ms"] for row in rows if row["model"] == "vit"), None)
    return [
        {
            **row,
            "folds": row["model"] in FOLDING,
            "speedup_over_layer_norm": layer_norm_ms and layer_norm_ms / row["p50_ms"],
        }
        for row in rows
    ]


def learned(study: Path) -> list[str]:
    """The labels of the runs that learned, of the first seed at the usual learning rate.

    Raises ClickException if the folder holds no result of the study, or if no network learned.
    """
    path = study / "norms.json"
    try:
        runs = [
            run
            for run in json.loads(path.read_bytes())["runs"]
            if (run["at"]["way"], run["options"]["seed"]) == ("usual", 0)
        ]
        labels = [str(run["label"]) for run in runs if run["series"] and run["series"][-1]["test_accuracy"] > LEARNED]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.ClickException(f"{path}: expected the result of vitbn study norms, found {error!r}") from error
    if not labels:
        raise click.ClickException(f"{path}: expected a network with an accuracy above {100 * LEARNED:g} %, found none")
    return labels
