"""Two ONNX files -> whether they answer alike, and how much faster the second is.

In: two paths and a request. Out: `Compared`. The inputs, the tolerances and the clock are those of `rewrite_file`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from export.compiler.errors import BadRequest, NotSupported, ProofFailed
from export.compiler.graph.files import dtype_of, read_model, weight_bytes
from export.compiler.graph.reads import parse_read, resolve
from export.compiler.passes.prepare import name_free_dimensions, without_functions
from export.compiler.pipeline import cost_sizes, prepared
from export.compiler.proof.compare import Comparison, Proof, prove
from export.compiler.proof.inputs import read_inputs
from export.compiler.proof.masks import mask_input
from export.compiler.proof.rounds import Asked, rounds
from export.compiler.proof.runs import Runner
from export.rewrite_file import reference
from export.timing import BATCHES, Timed, time_both


@dataclass(frozen=True)
class Request:
    reads: Sequence[str] = ()
    inputs: Path | None = None
    inputs_only: bool = False
    dims: Mapping[str, int] = field(default_factory=dict)
    proof: str = "float64"
    batches: Sequence[int] = BATCHES
    threads: int = 1
    packed: str | None = None


@dataclass(frozen=True)
class Compared:
    """Without a `proof` the answers differ, and `difference` says where."""

    proof: Proof | None
    difference: str
    timed: tuple[Timed, ...]

    @property
    def slower(self) -> list[Timed]:
        return [each for each in self.timed if each.slower]


def compare_files(first: Path, second: Path, request: Request, say: Callable[[str], None] = lambda _: None) -> Compared:
    """`say` is told each step. Raises ForeignError for files that cannot be compared, OSError."""
    original, other = read_model(first), read_model(second)
    names = [str(value.name) for value in original.graph.outputs]
    reads = resolve([parse_read(text) for text in request.reads], names)
    graph = _drawable(original)
    mask = str(mask_input(graph, request.packed).name) if request.packed else None
    if mask is None and (masked := next((read for read in reads if read.masked), None)):
        raise BadRequest(f"read: expected {masked} with --packed MASK, found no mask")
    given = (request.inputs, read_inputs(request.inputs, graph)) if request.inputs else None
    plain = without_functions(original)
    double, beside = reference(plain.graph, request.proof)
    asked = Asked(reads, request.dims, given, double, request.inputs_only, mask)
    weights = max(weight_bytes(original), weight_bytes(other))
    runner = Runner(second, weights)
    if unknown := sorted({*runner.inputs} - {str(value.name) for value in graph.inputs}):
        raise BadRequest(f"{second}: expected the inputs of {first}, found another, {unknown[0]!r}")
    kept = [read.output for read in reads] or names
    if {*runner.outputs} == {*kept}:  # an optimiser may order them anew
        runner.outputs = kept
    narrow = "float16" if "float16" in (dtype_of(original), dtype_of(other)) else "float32"
    try:
        own = Comparison(narrow, beside)
        proof = prove(rounds(plain, graph, first, asked, say), None, runner, own, say).proofs[0]
    except ProofFailed as failed:
        return Compared(None, str(failed), ())
    say("timing both")
    sizes = cost_sizes(graph, request.dims)
    return Compared(proof, "", time_both(first, second, graph, sizes, weights, request.batches, request.threads))


def _drawable(model: ir.Model) -> ir.Graph:
    """For drawing inputs: prepared, where the passes read the graph."""
    try:
        return prepared(model).model.graph
    except NotSupported:
        plain = without_functions(model)
        name_free_dimensions(plain.graph)
        return plain.graph
