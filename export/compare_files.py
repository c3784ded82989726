"""Compares two ONNX files: whether they answer alike, and how much faster the second is.

In: two paths and a request. Out: `Compared`. Inputs, tolerances and timing are the same as in `rewrite_file`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from export.compiler.errors import BadRequest, ProofFailed
from export.compiler.graph.requested_output_parts import resolve
from export.compiler.pipeline import cost_sizes, drawable
from export.compiler.proof.compare import Errors, Proof, prove
from export.compiler.proof.mask_meaning import hides_tokens
from export.compiler.proof.original_file import Original
from export.compiler.proof.rounds import rounds
from export.compiler.proof.unify_dimension_names import share_names
from export.rewrite_file import Request, plan_proof
from export.time_files import BATCHES, Timed, time_both


@dataclass(frozen=True)
class Compared:
    """`proof`: None if the answers differ; then `difference` says where, and `timed` is empty."""

    proof: Proof | None
    difference: str
    timed: tuple[Timed, ...]

    @property
    def slower(self) -> list[Timed]:
        """The timings in which the second file is slower."""
        return [timing for timing in self.timed if timing.slower]


def compare_files(
    first: Path,
    second: Path,
    request: Request,
    batches: Sequence[int] = BATCHES,
    threads: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> Compared:
    """Proves `second` against `first`, then times both at each batch size of `batches`.

    `threads`: of the timing. `say`: gets a line at every step. Raises ForeignError for files that cannot be compared,
    and OSError.
    """
    original, other = Original(first), Original(second)
    reads = resolve(request.reads, original.model.graph)
    if request.packed is not None:
        share_names(original, request.packed)
    elif masked := next((read for read in reads if read.masked), None):
        raise BadRequest(f"read: expected {masked} with --packed MASK, found no mask")
    hides = request.packed is not None and hides_tokens(original, request.packed)
    graph = drawable(original.model)
    proof_plan, reference = plan_proof(request, reads, original, graph, hides)
    runner = other.runner
    if unknown := sorted({*runner.inputs} - {str(value.name) for value in graph.inputs}):
        raise BadRequest(f"{second}: expected the inputs of {first}, found another, {unknown[0]!r}")
    outputs = [read.output for read in reads] or [str(value.name) for value in original.model.graph.outputs]
    if {*runner.outputs} == {*outputs}:  # the second file may have them in another order
        runner.outputs = outputs
    dtype = "float16" if "float16" in (original.dtype, other.dtype) else "float32"
    try:
        errors = Errors(dtype, reference)
        proof = prove(rounds(original, graph, proof_plan, say), None, runner, errors, say).proofs[0]
    except ProofFailed as failed:
        return Compared(None, str(failed), ())
    say("timing both")
    del runner, original.runner, other.runner  # all weights are in their memory
    sizes = cost_sizes(graph, request.dims)
    return Compared(proof, "", time_both(first, second, graph, sizes, batches, threads))
