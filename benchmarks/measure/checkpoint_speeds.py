"""Images a second of checkpoints after all rewrites, each with its fastest batch size and number of threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.measure.candidate import Candidate
from benchmarks.measure.engines import OPTIMISED
from benchmarks.measure.interleaved_timing import Durations, time_interleaved
from benchmarks.measure.measured_network import Network, rewrite_checkpoint
from benchmarks.measure.progress import steps
from benchmarks.measure.result_file import Row
from benchmarks.measure.workload_settings import best_workload, runner
from models.checkpoints.checkpoint import Checkpoint, load

IMAGES = 5000
TRIAL_S = 5.0  # to measure a trial of `vitbn tune`


def checkpoint_name(path: Path) -> str:
    """A checkpoint's name in results: the folder's name and the file's."""
    return f"{path.parent.name}/{path.name}"


def measure(checkpoints: Sequence[Checkpoint], seconds: float, add: Callable[[list[Row]], None]) -> None:
    """Times every checkpoint with all rewrites, in interleaved rounds for `seconds` in all.

    `add` gets a row for each, slowest first, also after Ctrl-C. Raises EquivalenceError or RewriteError.
    """
    rows: list[Row] = []
    runs: dict[str, Callable[[], object]] = {}
    for checkpoint in steps(checkpoints, "searching the best way"):
        exported = rewrite_checkpoint(checkpoint.path)
        network, name = Network(checkpoint.config.model, checkpoint.path), checkpoint_name(checkpoint.path)
        candidate, images = Candidate(network, OPTIMISED), network.examples(IMAGES)
        way = best_workload(exported.onnx, candidate, images)
        runs[name] = runner(exported.onnx, candidate, way, images)
        rows.append(
            {
                "checkpoint": name,
                "images": IMAGES,
                "sha256": checkpoint.sha256,
                "model": checkpoint.config.model,
                "depth": checkpoint.config.depth if checkpoint.config.is_transformer else None,
                "test_accuracy": checkpoint.metrics["test_accuracy"],
                "macs": exported.steps[-1].macs,
                "max_abs_error": exported.artifact.network.max_abs_error,
                "way": str(way),
            }
        )
    time_interleaved(runs, seconds, "measuring", use=lambda measured: add(_timed(rows, measured)))


def images_per_s(checkpoint: Path) -> float:
    """The speed of the file `checkpoint`. Raises as `measure`."""
    rows: list[Row] = []
    measure([load(checkpoint)], TRIAL_S, rows.extend)
    return float(rows[0]["images_per_s"])


def _timed(rows: Sequence[Row], measured: Mapping[str, Durations]) -> list[Row]:
    timed = []
    for row in rows:
        durations = measured[row["checkpoint"]]
        timed.append({**row, "images_per_s": 1000 * IMAGES / durations.percentile_ms(50), **durations.row()})
    return sorted(timed, key=lambda row: row["images_per_s"])
