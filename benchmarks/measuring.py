"""Contestants -> rows: each is prepared, called once and checked, then timed in interleaved rounds.

In: which models in which runtimes. Out: one JSON-ready row a contestant and batch size, and those that are missing with
the reason; or EquivalenceError for a contestant that answers wrongly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.calls import BUFFERS, Call, classify
from benchmarks.contestants import CHECKED, Contestant, check, contestant, example_images, expected_logits
from benchmarks.memory import peak_memory_mb
from benchmarks.runtimes import BASELINE, RUNTIMES, TORCH_ENGINES, Device, Precision
from benchmarks.timing import Durations, is_stable, ratio_with_interval, time_interleaved
from benchmarks.unavailable import Unavailable
from benchmarks.ways import best_micro_batch
from export.equivalence import Images, Logits
from models.config import ModelConfig

Row = dict[str, Any]
Wanted = tuple[ModelConfig, str, Precision]
"""A model, a runtime and a precision."""


@dataclass(frozen=True)
class Options:
    """How all of them are measured: for `seconds` a batch size, in whole batches where there is no `micro_batch`."""

    device: Device
    threads: int
    seconds: float
    micro_batch: int | Literal["auto"] | None = None
    memory: bool = False


@dataclass(frozen=True)
class Ready:
    """A contestant that answered rightly, and what its first call told; `warm_ns` is 0 where it needs one more."""

    contestant: Contestant
    call: Call
    micro_batch: int
    first_call_ns: int
    warm_ns: int
    max_abs_error: float
    peak_memory_mb: float | None


@dataclass(frozen=True)
class Missing:
    """What is not measured, each once with its reason; `say` gets a line for it."""

    say: Callable[[str], None]
    rows: list[dict[str, str]] = field(default_factory=list)

    def add(self, config: ModelConfig, runtime: str, precision: Precision, reason: Unavailable) -> None:
        """Adds one, if it is not there yet."""
        row = {"model": config.model, "runtime": runtime, "precision": precision, "reason": str(reason)}
        if row not in self.rows:
            self.rows.append(row)
            self.say(f"Not measured: {config.model}, {RUNTIMES[runtime].label}, {precision}: {reason}")


def prepare(wanted: Sequence[Wanted], batches: Sequence[int], options: Options, missing: Missing) -> list[Contestant]:
    """The contestants that this machine has; the others are added to `missing`."""
    from tqdm import tqdm

    found = []
    for config, runtime, precision in tqdm(wanted, desc="Building and exporting", leave=False, disable=None):
        try:
            found.append(contestant(config, runtime, precision, options.device, options.threads, batches))
        except Unavailable as reason:
            missing.add(config, runtime, precision, reason)
    return found


def measure(
    contestants: Sequence[Contestant],
    batch: int,
    options: Options,
    limits: Mapping[str, Any],
    title: str,
    missing: Missing,
) -> list[Row]:
    """One row a contestant, all from one interleaved run; one that its first call shows not to work is `missing`.

    Raises EquivalenceError for one that answers wrongly.
    """
    from tqdm import tqdm

    expected: dict[ModelConfig, Logits] = {}
    ready: list[Ready] = []
    for one in tqdm(contestants, desc=f"{title}: first calls", leave=False, disable=None):
        images = example_images(one.config, BUFFERS * batch)
        if one.config not in expected:
            expected[one.config] = expected_logits(one.config, images[: min(batch, CHECKED)])
        try:
            ready.append(first_call(one, images, batch, expected[one.config], options))
        except Unavailable as reason:
            missing.add(one.config, one.runtime, one.precision, reason)
    baselines = {r.contestant.config: str(i) for i, r in enumerate(ready) if _is_baseline(r.contestant)}
    against = {str(i): baselines.get(r.contestant.config, str(i)) for i, r in enumerate(ready)}

    def stable(measured: Mapping[str, Durations]) -> dict[str, bool]:
        return {name: is_stable(measured[name], measured[baseline]) for name, baseline in against.items()}

    with tqdm(total=100, unit="%", desc=f"{title}: measuring", leave=False, disable=None) as bar:
        measured = time_interleaved(
            {str(i): one.call for i, one in enumerate(ready)},
            options.seconds,
            lambda share: bar.update(int(100 * share) - bar.n),
            enough=lambda so_far: all(stable(so_far).values()),
            warm_up_ns={str(i): one.warm_ns for i, one in enumerate(ready) if one.warm_ns},
        )
    is_steady = stable(measured)
    rows = []
    for name, one in zip(measured, ready, strict=True):
        known = one.contestant.config in baselines
        ratio = asdict(ratio_with_interval(measured[against[name]], measured[name])) if known else None
        row = {"stable": is_steady[name], "ratio_to_torch": ratio}
        rows.append(_row(one, measured[name], batch, options, limits) | row)
    return rows


def first_call(one: Contestant, images: Images, batch: int, expected: Logits, options: Options) -> Ready:
    """Calls `one` for the first time, compilation included, and compares it with `expected`; raises EquivalenceError.

    PyTorch eager on the CPU, which prepares nothing for a batch, is given no more images than are compared.
    """
    eager = RUNTIMES[one.runtime].engine == "eager" and options.device == "cpu"
    part = images[: len(expected) if eager else batch]
    micro_batch = min(batch, options.micro_batch) if isinstance(options.micro_batch, int) else batch
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    start_ns = time.perf_counter_ns()
    logits = classify(one.run, part, micro_batch, options.device)
    first_call_ns = time.perf_counter_ns() - start_ns
    peak_mb = None
    if (
        options.device == "cuda" and RUNTIMES[one.runtime].engine in TORCH_ENGINES
    ):  # others have allocators of their own
        peak_mb = (torch.cuda.max_memory_allocated() - before) / 1e6
    error = check(one.name, one.precision, expected, logits[: len(expected)])
    if options.micro_batch == "auto":
        make = partial(_all_of, one, options.device)
        micro_batch = best_micro_batch(make, images[:batch])
    if options.memory and options.device == "cpu":
        how = (options.threads, RUNTIMES[one.runtime].engine, one.precision)
        peak_mb = peak_memory_mb(one.program, images[:batch], micro_batch, *how)
    call = Call(one.run, images, batch, micro_batch, options.device)
    warm_ns = first_call_ns * batch // len(part) if eager else 0
    return Ready(one, call, micro_batch, first_call_ns, warm_ns, error, peak_mb)


def _all_of(one: Contestant, device: Device, images: Images, micro_batch: int) -> Call:
    return Call(one.run, images, len(images), micro_batch, device)


def _is_baseline(one: Contestant) -> bool:
    return one.runtime == BASELINE and one.precision == "fp32"


def _row(one: Ready, durations: Durations, batch: int, options: Options, limits: Mapping[str, Any]) -> Row:
    """Percentiles in milliseconds, samples in nanoseconds.

    `bandwidth_share` counts what has to be read and written at least: weights, images and logits, each once.
    """
    contestant, config = one.contestant, one.contestant.config
    p50_ms = durations.percentile_ms(50)
    rates = limits["gemm_gflops_per_s_by_precision"]
    gflops_per_s = 2 * contestant.macs * batch / p50_ms / 1e6
    moved = contestant.weight_bytes + batch * (int(np.prod(config.input_shape)) + 4 * config.num_classes)
    return {
        "model": config.model,
        "depth": config.depth if config.is_transformer else None,
        "dim": config.dim if config.is_transformer else None,
        "runtime": contestant.runtime,
        "label": RUNTIMES[contestant.runtime].label,
        "precision": contestant.precision,
        "batch": batch,
        "micro_batch": one.micro_batch,
        "threads": options.threads,
        "device": options.device,
        "rounds": len(durations.samples_ns),
        "p50_ms": p50_ms,
        "p90_ms": durations.percentile_ms(90),
        "p99_ms": durations.percentile_ms(99),
        "device_p50_ms": _by_events(one),
        "images_per_s": 1000 * batch / p50_ms,
        "first_call_ms": one.first_call_ns / 1e6,
        "macs": contestant.macs,
        "gemm_share": gflops_per_s / rates.get(contestant.precision, rates["fp32"]),
        "bandwidth_share": moved / p50_ms / 1e6 / limits["copy_gb_per_s"],
        "peak_memory_mb": one.peak_memory_mb,
        "max_abs_error": one.max_abs_error,
        "samples_ns": list(durations.samples_ns),
    }


def _by_events(one: Ready) -> float | None:
    """The median of all calls by CUDA events; of PyTorch's engines alone, whose stream the events are in."""
    known = one.call.device_ms and RUNTIMES[one.contestant.runtime].engine in TORCH_ENGINES
    return float(np.median(one.call.device_ms)) if known else None
