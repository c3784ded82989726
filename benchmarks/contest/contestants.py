"""Contestants: a network in a runtime and a precision, built, called once and checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch

from benchmarks.contest import programs
from benchmarks.contest.calls import BUFFERS, TimedCall, classify
from benchmarks.contest.engines import Run, start
from benchmarks.contest.programs import Program
from benchmarks.contest.runtimes import TORCH_ENGINES, Device, Entry, Setup
from benchmarks.contest.subjects import Subject, subject
from benchmarks.contest.ways import MICRO_BATCHES, SEARCH_IMAGES, best_micro_batch
from benchmarks.measure.memory import peak_memory_mb
from benchmarks.measure.progress import count_bar, note, one_line
from export.equivalence import EquivalenceError, Images, Logits
from export.errors import Unavailable

CHECKED = 512  # all 5,000 would take PyTorch eager a minute per model


@dataclass(frozen=True)
class Options:
    """`seconds` per batch size; without `micro_batch` whole batches."""

    device: Device
    threads: int
    seconds: float
    micro_batch: int | Literal["auto"] | None = None
    memory: bool = False


@dataclass(frozen=True)
class Contestant:
    entry: Entry
    subject: Subject
    program: Program
    setup: Setup
    run: Run
    macs: int
    values: int = 0  # per image, see floors.py

    @property
    def weight_bytes(self) -> int:
        if isinstance(self.program, bytes):
            return len(self.program)
        return sum(tensor.nbytes for tensor in (*self.program.parameters(), *self.program.buffers()))


@dataclass(frozen=True)
class Ready:
    """`warm_ns` is 0 if the contestant needs another call before timing."""

    contestant: Contestant
    call: TimedCall
    micro_batch: int
    first_call_ns: int
    warm_ns: int
    max_abs_error: float
    peak_memory_mb: float | None


@dataclass
class Missing:
    rows: list[dict[str, str]] = field(default_factory=list)
    wrong: bool = False

    def add(self, entry: Entry, reason: Exception) -> None:
        self.wrong |= isinstance(reason, EquivalenceError)
        words = one_line(reason)
        row = {"model": entry.config.model, "runtime": entry.runtime, "precision": entry.precision, "reason": words}
        if row not in self.rows:
            self.rows.append(row)
            note(f"Not measured: {entry.config.model}, {entry.how.label}, {entry.precision}: {words}")


def build(entries: Sequence[Entry], batches: Sequence[int], options: Options, missing: Missing) -> list[Contestant]:
    contestants = []
    subjects = {config: subject(config) for config in dict.fromkeys(entry.config for entry in entries)}
    with count_bar("Building and exporting", len(entries), "contestants") as advance:
        for entry in entries:
            try:
                contestants.append(contestant(entry, subjects[entry.config], options, batches))
            except Exception as reason:  # engines raise anything; only this contestant is lost
                missing.add(entry, reason)
            advance(1)
    return contestants


def contestant(entry: Entry, of: Subject, options: Options, batches: Sequence[int]) -> Contestant:
    if reason := entry.why_not(options.device):
        raise Unavailable(reason)
    sizes = tuple(sorted({size for batch in batches for size in call_sizes(batch, options)}))
    how, threads = entry.how, options.threads
    setup = Setup(how.engine, entry.precision, options.device, threads, entry.config, sizes, how.graph)
    program, macs, values = programs.for_runtime(of, how, entry.precision)
    return Contestant(entry, of, program, setup, start(program, setup), macs, values)


def call_sizes(batch: int, options: Options) -> set[int]:
    """Batch sizes that need a profile."""
    if options.micro_batch == "auto":
        steps = {size for size in MICRO_BATCHES if size < batch} | {batch}
    else:
        steps = {min(batch, options.micro_batch or batch)}
    searched = {min(batch, SEARCH_IMAGES)} if options.micro_batch == "auto" else set()
    return steps | {total % step for step in steps for total in (batch, *searched) if total % step}


def first_calls(
    contestants: Sequence[Contestant], batch: int, options: Options, title: str, missing: Missing
) -> list[Ready]:
    ready = []
    with count_bar(f"{title}: first calls", len(contestants), "contestants") as advance:
        for each in contestants:
            try:
                ready.append(first_call(each, batch, options))
            except Exception as reason:  # as above
                missing.add(each.entry, reason)
            advance(1)
    return ready


def first_call(who: Contestant, batch: int, options: Options) -> Ready:
    """Includes compilation; checks the logits. Raises EquivalenceError.

    PyTorch eager on the CPU prepares nothing for a batch and gets at most `CHECKED` images.
    """
    engine, device = who.entry.how.engine, who.setup.device
    images = who.subject.images(BUFFERS * batch)
    eager = engine == "eager" and device == "cpu"
    part = images[: min(batch, CHECKED) if eager else batch]
    micro_batch = min(batch, options.micro_batch) if isinstance(options.micro_batch, int) else batch
    before = _device_memory(device)
    start_ns = time.perf_counter_ns()
    logits = classify(who.run, part, micro_batch, device)
    first_call_ns = time.perf_counter_ns() - start_ns
    # The other engines have their own allocators.
    known = before is not None and engine in TORCH_ENGINES
    peak_mb = (torch.cuda.max_memory_allocated() - (before or 0)) / 1e6 if known else None
    error = who.subject.check(who.entry.name, who.entry.precision, len(part), logits)
    if options.micro_batch == "auto":
        micro_batch = best_micro_batch(partial(_in_batches_of, who), images[:batch])
    if options.memory and device == "cpu":
        peak_mb = peak_memory_mb(partial(_classify_anew, who.program, who.setup, images[:batch], micro_batch))
    call = TimedCall(who.run, images, batch, micro_batch, device)
    warm_ns = first_call_ns * batch // len(part) if eager else 0
    return Ready(who, call, micro_batch, first_call_ns, warm_ns, error, peak_mb)


def _device_memory(device: Device) -> int | None:
    """Bytes; resets the peak."""
    if device == "cpu":
        return None
    torch.cuda.reset_peak_memory_stats()
    return int(torch.cuda.memory_allocated())


def _in_batches_of(who: Contestant, images: Images, micro_batch: int) -> Callable[[], object]:
    return TimedCall(who.run, images, len(images), micro_batch, who.setup.device)


def _classify_anew(program: Program, setup: Setup, images: Images, micro_batch: int) -> Logits:
    return classify(start(program, setup), images, micro_batch, setup.device)
