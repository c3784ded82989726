"""In: networks from `pip install '.[foreign]'`. Out: multiply-accumulates, interleaved times on one thread or a GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks.measure.foreign_networks import NETWORKS, Foreign
from benchmarks.measure.options import WithPresets, device_option, presets, seconds_option
from benchmarks.measure.result_file import Record
from benchmarks.reporting.recorded_decorator import recorded
from export.precision_table import Device

BATCHES: dict[Device, tuple[int, ...]] = {"cpu": (1, 8), "cuda": (1, 64)}


@presets("decoders", "packed")
@click.command(cls=WithPresets)
@click.option("--network", "names", type=click.Choice(list(NETWORKS)), multiple=True, help="[default: all]")
@seconds_option(10, "At most, for each network and batch; three rounds in any case.")
@device_option
@recorded("foreign", "left_out", threads=1)
def foreign(record: Record, names: tuple[str, ...], seconds: float, wanted: str) -> int:
    """Time published networks plain, optimised by ONNX Runtime, rewritten, and on a CPU both of the files in OpenVINO.

    Ends with exit code 1 if the package of a network is missing.
    """
    from benchmarks.measure.devices import choose
    from benchmarks.measure.foreign_candidates import reason_of
    from export.compiler.errors import ForeignError

    lacks_package, device = False, choose(wanted)
    record.device = device
    for name in names or NETWORKS:
        try:
            measured = list(measure(NETWORKS[name], seconds, name, device))
        except (ForeignError, ImportError) as error:
            measured = [{"reason": reason_of(error)}]
            lacks_package |= isinstance(error, ImportError)
        record.add(*({"network": name, "title": NETWORKS[name].title, **row} for row in measured))
    return int(lacks_package)


def measure(network: Foreign, seconds: float, name: str, device: Device = "cpu") -> Iterator[dict[str, Any]]:
    """A row for each batch and candidate, measured or left out. `errors`: of the proof, by precision.

    Raises ForeignError, and ImportError if a package is missing.
    """
    from benchmarks.measure.foreign_candidates import OPTIMISER, OURS, PLAIN, optimise
    from export.rewrite_file import Request, rewrite_file

    with tempfile.TemporaryDirectory() as folder:
        plain, ours = network.file(Path(folder)), Path(folder, "rewritten.onnx")
        written = rewrite_file(plain, ours, Request(reads=network.reads, dims=network.dims))
        optimised, fused = optimise(network, plain, Path(folder))
        files = {PLAIN: plain, OPTIMISER: optimised, OURS: ours}
        network_fields = {
            "fused": fused,
            "macs": written.rewritten.macs,
            "macs_after": {step.name: step.macs for step in written.rewritten.steps},
            "places": {step.name: len(step.sites) for step in written.rewritten.steps},
            "norms": [_norms(plain), _norms(ours)],
            "errors": {proof.precision: proof.error for proof in written.proofs},
            "sizes": dict(written.sizes),
        }
        for batch in BATCHES[device]:
            for row in _timed(network, files, dict(written.sizes), batch, seconds, f"{name}, batch {batch}", device):
                yield {**network_fields, "batch": batch, **row}


def _timed(
    network: Foreign,
    files: dict[str, Path],
    sizes: dict[str, int],
    batch: int,
    seconds: float,
    title: str,
    device: Device,
) -> Iterator[dict[str, Any]]:
    import onnx_ir as ir

    from benchmarks.measure.foreign_candidates import BASES, PLAIN, candidates
    from benchmarks.measure.interleaved_timing import ON_A_CPU, ON_A_GPU, ratio_with_interval, time_interleaved
    from export.compiler.graph.requested_output_parts import parse_read
    from export.compiler.pipeline import prepared
    from export.compiler.proof.inputs import draw, first_dimensions
    from export.compiler.proof.rounds import picked

    graph = prepared(ir.load(files[PLAIN])).model.graph
    feeds = draw(graph, {**sizes, **dict.fromkeys(first_dimensions(graph), batch)})
    reads, names = [parse_read(text) for text in network.reads], [str(value.name) for value in graph.outputs]

    def read(outputs: Any) -> Any:
        return picked(dict(zip(names, outputs, strict=True)), reads)[0]

    calls, left_out = candidates(files, read, feeds, device)
    protocol = ON_A_CPU if device == "cpu" else ON_A_GPU
    measured = time_interleaved(calls, seconds, title, protocol=protocol)
    for candidate, durations in measured.items():
        base = BASES.get(candidate)
        ratio = vars(ratio_with_interval(measured[base], durations)) if base in measured else None
        yield {"candidate": candidate, **durations.row(), "base": base, "times_as_fast": ratio}
    for candidate, reason in left_out.items():
        yield {"candidate": candidate, "reason": reason}


def _norms(path: Path) -> int:
    """The number of BatchNormalization nodes in a file."""
    import onnx_ir as ir

    return sum(node.op_type == "BatchNormalization" for node in ir.load(path).graph)


if __name__ == "__main__":
    foreign()
