"""Builds candidates, times the first call of each, and compares its logits with PyTorch's.

In: candidates. Out: candidates that answered correctly; the others go to `Missing` with a reason.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from benchmarks.measure.calls_on_device_buffers import BUFFERS, Calls, classify
from benchmarks.measure.candidate import Candidate, Classify, Program, Sizes
from benchmarks.measure.engines import start, why_not
from benchmarks.measure.progress import note, one_line, steps
from benchmarks.measure.reference import Reference, make_reference, program
from export.compare_logits import EquivalenceError
from export.errors import Unavailable
from export.precision_table import Device

CHECKED = 512  # images; all 5,000 would take PyTorch eager a minute per model


@dataclass(frozen=True)
class BuiltCandidate:
    """A candidate whose engine has started. `macs`: per image."""

    candidate: Candidate
    reference: Reference
    program: Program
    run: Classify
    macs: int

    @property
    def weight_bytes(self) -> int:
        if isinstance(self.program, bytes):
            return len(self.program)
        return sum(tensor.nbytes for tensor in (*self.program.parameters(), *self.program.buffers()))


@dataclass(frozen=True)
class CalledCandidate:
    """A candidate after its first call.

    `warm_ns`: the expected time of the next call; 0 if only a further call can tell. `max_abs_error`: of its logits.
    """

    built: BuiltCandidate
    calls: Calls
    first_call_ns: int
    warm_ns: int
    max_abs_error: float
    peak_memory_mb: float | None


@dataclass
class Missing:
    """Rows of the candidates that are not measured, each with its `reason`. `wrong`: whether an answer was wrong."""

    rows: list[dict[str, str]] = field(default_factory=list)
    wrong: bool = False

    def add(self, candidate: Candidate, reason: Exception) -> None:
        self.wrong |= isinstance(reason, EquivalenceError)
        text = one_line(reason)
        row = {"model": candidate.model, "runtime": candidate.runtime.name, "precision": candidate.precision}
        row["reason"] = text
        if row not in self.rows:
            self.rows.append(row)
            note(f"Not measured: {candidate.model}, {candidate.runtime.label}, {candidate.precision}: {text}")


def build(reference: Reference, candidate: Candidate, sizes: Sizes = (1,)) -> BuiltCandidate:
    """Starts the engine for calls with `sizes` images. Raises Unavailable if this machine cannot run it."""
    if reason := why_not(candidate):
        raise Unavailable(reason)
    engine_input, macs = program(reference, candidate)
    return BuiltCandidate(candidate, reference, engine_input, start(engine_input, candidate, sizes), macs)


def build_all(candidates: Sequence[Candidate], batches: Sequence[int], missing: Missing) -> list[BuiltCandidate]:
    """Builds the candidates for all batch sizes; a candidate that fails goes to `missing`."""
    built = []
    sizes = tuple(sorted({*batches}))
    networks = dict.fromkeys(candidate.network for candidate in candidates)
    references = {network: make_reference(network) for network in networks}
    for candidate in steps(candidates, f"Building and exporting: {len(candidates)} candidates"):
        try:
            built.append(build(references[candidate.network], candidate, sizes))
        except Exception as reason:  # engines raise anything; the other candidates go on
            missing.add(candidate, reason)
    return built


def first_calls(built: Sequence[BuiltCandidate], batch: int, title: str, missing: Missing) -> list[CalledCandidate]:
    """Calls the candidates; those that fail or answer wrongly go to `missing`."""
    called = []
    for candidate in steps(built, f"{title}: first calls: {len(built)} candidates"):
        try:
            called.append(first_call(candidate, batch))
        except Exception as reason:  # engines raise anything
            missing.add(candidate.candidate, reason)
    return called


def first_call(built: BuiltCandidate, batch: int) -> CalledCandidate:
    """Times the first call, compilation included, and checks its logits. Raises EquivalenceError.

    PyTorch eager on the CPU prepares nothing for a batch, so it gets at most `CHECKED` images.
    """
    candidate, device = built.candidate, built.candidate.device
    images = built.reference.images(BUFFERS * batch)
    prepares_nothing = candidate.runtime.name in ("torch", "torch-sdpa") and device == "cpu"
    part = images[: min(batch, CHECKED) if prepares_nothing else batch]
    before = _device_memory(device)
    start_ns = time.perf_counter_ns()
    logits = classify(built.run, part, batch, device)
    first_call_ns = time.perf_counter_ns() - start_ns
    # The other engines have their own allocators.
    measurable = before is not None and candidate.runtime.takes_network
    peak_mb = (torch.cuda.max_memory_allocated() - (before or 0)) / 1e6 if measurable else None
    error = built.reference.check(candidate.name, candidate.precision, len(part), logits)
    calls = Calls(built.run, images, batch, device)
    warm_ns = first_call_ns * batch // len(part) if prepares_nothing else 0
    return CalledCandidate(built, calls, first_call_ns, warm_ns, error, peak_mb)


def _device_memory(device: Device) -> int | None:
    """Allocated bytes of the GPU, None on the CPU. Resets the peak."""
    if device == "cpu":
        return None
    torch.cuda.reset_peak_memory_stats()
    return int(torch.cuda.memory_allocated())
