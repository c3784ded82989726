"""Out as JSON: rates of `vitbn bulk` and plain ONNX Runtime; its memory; whether each row came once despite kills."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from benchmarks.measure.choices import json_option


@click.command()
@click.option("--rows", type=click.IntRange(10_000), default=2_000_000, show_default=True)
@click.option("--model", default="vitbn-tiny", show_default=True, help="A shipped network, with all rewrites.")
@json_option
def bulk(rows: int, model: str, json_path: Path | None) -> None:
    """Compare vitbn bulk with plain ONNX Runtime, watch its memory, kill it and count its rows."""
    from benchmarks.load.bulk_runs import BulkBench
    from benchmarks.measure.machine import cores
    from benchmarks.measure.run import recording

    with recording(json_path, cores()) as record, tempfile.TemporaryDirectory(prefix="bulk-") as folder:
        bench = BulkBench(Path(folder), rows, model)
        for name, measure in (("undisturbed", bench.compared), ("killed", bench.killed)):
            row = measure()
            click.echo(f"{name}: " + ", ".join(f"{key} {value}" for key, value in row.items()))
            record.add({"model": model, "rows": rows, "run": name, **row})
        verdict = bench.verdict()
        click.echo(", ".join(f"{key} {value}" for key, value in verdict.items()))
        *others, last = record.rows
        record.update([*others, {**last, **verdict}])
