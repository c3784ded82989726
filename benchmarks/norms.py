from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from benchmarks.contest.ways import SEARCH_IMAGES
from benchmarks.measure.choices import Result, seconds_option
from benchmarks.measure.machine import cores

LEARNED = 0.5  # networks below it failed to learn; their logits may be too large for the proof


class NormsError(Exception):
    pass


@click.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--images", "count", type=click.IntRange(SEARCH_IMAGES), default=5000, show_default=True)
@seconds_option(60, "At most, to measure; three rounds in any case.")
@click.option("--output", type=Result(folder=True), required=True, help="Folder for the JSON, table and plot.")
def norms(study: Path, count: int, seconds: float, output: Path) -> None:
    """Time the networks that `models/study.py norms --output STUDY` trained, with all rewrites that apply."""
    from benchmarks.contest.speeds import measure
    from benchmarks.measure.results import recording
    from benchmarks.reporting import norms_and_speed as page
    from export.equivalence import EquivalenceError
    from export.rewrites.errors import RewriteError
    from models.checkpoint import CheckpointError, load

    path = output / f"{page.NAME}.json"
    try:
        studied = study_rows(study)
        learned = [row for row in studied.values() if (row["usual"]["test_accuracy"] or 0) > LEARNED]
        if not learned:
            expected = f"a network with an accuracy above {100 * LEARNED:g} %"
            raise NormsError(f"{study / 'norms.json'}: expected {expected}, found none")
        checkpoints = [load(study / "runs" / row["checkpoint"]) for row in learned]
        with recording(page.NAME, path, cores(), extras=page.beside(output), kind="study") as record:
            measure(checkpoints, count, seconds, lambda rows: record.update(page.fields(rows, studied, count)))
    except (CheckpointError, NormsError, EquivalenceError, RewriteError, OSError) as error:
        raise click.ClickException(str(error)) from error


def study_rows(study: Path) -> dict[str, dict[str, Any]]:
    path = study / "norms.json"
    try:
        return {row["model"]: row for row in json.loads(path.read_bytes())["derived"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NormsError(f"{path}: expected the result of models/study.py norms, found {error!r}") from error


if __name__ == "__main__":
    norms()
