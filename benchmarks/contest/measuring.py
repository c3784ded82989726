"""Contestants -> rows: a checked first call, then interleaved timed rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import click
import numpy as np

from benchmarks.contest.contestants import Contestant, Missing, Options, Ready, first_calls
from benchmarks.contest.devices import free, gpu_uuid
from benchmarks.contest.floors import floor_ms
from benchmarks.measure.gpu_state import monitor
from benchmarks.measure.run import Record
from benchmarks.measure.timing import (
    MIN_ROUNDS,
    ON_A_CPU,
    ON_A_GPU,
    Durations,
    Slowed,
    finished_rounds,
    is_stable,
    ratio_with_interval,
    time_interleaved,
)

MIN_ROUNDS_ON_A_GPU = 15  # clocks and power vary

COPIES = " with copies"  # suffix of a contestant's name

Row = dict[str, Any]
Limits = Mapping[str, Any]


def measure(
    contestants: Sequence[Contestant],
    batch: int,
    options: Options,
    limits: Limits,
    title: str,
    missing: Missing,
    add: Callable[[list[Row]], None],
) -> None:
    """Adds a JSON-ready row per contestant, also at Ctrl-C.

    A contestant that fails goes to `missing`, and the others begin again. All go there if the device slows itself down
    in every round.
    """
    ready = {str(i): each for i, each in enumerate(first_calls(contestants, batch, options, title, missing))}
    run = _Run(ready, batch, options, limits, title, missing)
    finished_rounds(run.timed, lambda measured: add(run.rows(measured)))


def finish(record: Record, rows: Sequence[Row], missing: Missing) -> None:
    if not record.rows:
        raise click.ClickException("nothing to measure: expected one of --runtimes on this machine, found none")
    record.update([*rows, *missing.rows])  # also of a network without contestants


class _Run:
    def __init__(
        self, ready: dict[str, Ready], batch: int, options: Options, limits: Limits, title: str, missing: Missing
    ) -> None:
        self._ready, self._batch, self._options, self._limits = ready, batch, options, limits
        self._title, self._missing = title, missing
        on_a_gpu = options.device == "cuda"
        self._watch = monitor(gpu_uuid()) if on_a_gpu else None
        self._protocol = replace(ON_A_GPU if on_a_gpu else ON_A_CPU, ended=self._end_round)
        if self._watch:
            self._protocol = replace(self._protocol, accept=self._watch.undisturbed)

    def timed(self) -> dict[str, Durations]:
        while self._ready:
            try:
                return self._interleaved()
            except _Failed as failed:
                self._missing.add(self._ready.pop(failed.name).contestant.entry, failed.reason)
                self._forget()
                free()
            except Slowed as reason:
                for each in self._ready.values():
                    self._missing.add(each.contestant.entry, reason)
                self._ready.clear()
        return {}

    def rows(self, measured: Mapping[str, Durations]) -> list[Row]:
        compared = []
        for name, each in self._ready.items():
            base = self._baseline(name)
            ratio = asdict(ratio_with_interval(measured[base], measured[name])) if base else None
            row: Row = {"stable": self._stable(measured, name), "ratio_to_torch": ratio}
            if self._watch:
                row["gpu_state"] = self._watch.summary()
            if copies := measured.get(f"{name}{COPIES}"):
                row["copies_p50_ms"] = copies.percentile_ms(50)
            compared.append(_row(each, measured[name], self._batch, self._options, self._limits) | row)
        return compared

    def _interleaved(self) -> dict[str, Durations]:
        on_a_gpu = self._options.device == "cuda"
        calls = {name: partial(_call, name, each.call) for name, each in self._ready.items()}
        if on_a_gpu:
            with_copies = {name: each.call.with_copies for name, each in self._ready.items()}
            calls |= {f"{name}{COPIES}": partial(_call, name, call) for name, call in with_copies.items()}
        return time_interleaved(
            calls,
            self._options.seconds,
            self._title,
            MIN_ROUNDS_ON_A_GPU if on_a_gpu else MIN_ROUNDS,
            enough=lambda so_far: all(self._stable(so_far, name) for name in self._ready),
            warm_up_ns={name: each.warm_ns for name, each in self._ready.items() if each.warm_ns},
            protocol=self._protocol,
        )

    def _baseline(self, name: str) -> str | None:
        config = self._ready[name].contestant.subject.config
        same = (i for i, each in self._ready.items() if each.contestant.subject.config == config)
        return next((i for i in same if self._ready[i].contestant.entry.is_baseline), None)

    def _stable(self, measured: Mapping[str, Durations], name: str) -> bool:
        return is_stable(measured[name], measured[self._baseline(name) or name])

    def _end_round(self, counts: bool) -> None:
        for each in self._ready.values():
            each.call.end_round(counts)

    def _forget(self) -> None:
        """The readings of an aborted attempt."""
        for each in self._ready.values():
            each.call.forget()
        if self._watch:
            self._watch.readings.clear()


class _Failed(Exception):
    def __init__(self, name: str, reason: Exception) -> None:
        super().__init__(name)
        self.name, self.reason = name, reason


def _call(name: str, call: Callable[[], object]) -> object:
    try:
        return call()
    except Exception as reason:  # engines raise anything
        raise _Failed(name, reason) from reason


def _row(ready: Ready, durations: Durations, batch: int, options: Options, limits: Limits) -> Row:
    """`bandwidth_share` counts weights, images and logits, each once. `fallback`: why the row is no CUDA graph."""
    contestant, entry = ready.contestant, ready.contestant.entry
    config, p50_ms = entry.config, durations.percentile_ms(50)
    rates = limits["gemm_gflops_per_s_by_precision"]
    gflops_per_s = 2 * contestant.macs * batch / p50_ms / 1e6
    moved = contestant.weight_bytes + batch * (int(np.prod(config.input_shape)) + 4 * config.num_classes)
    return {
        "model": config.model,
        "depth": config.depth if config.is_transformer else None,
        "dim": config.dim if config.is_transformer else None,
        "runtime": entry.runtime,
        "label": entry.how.label,
        "precision": entry.precision,
        "batch": batch,
        "micro_batch": ready.micro_batch,
        "threads": options.threads,
        "device": options.device,
        "rounds": len(durations.samples_ns),
        **durations.percentiles(50, 90, 99),
        "device_p50_ms": _by_events(ready),
        "images_per_s": 1000 * batch / p50_ms,
        "first_call_ms": ready.first_call_ns / 1e6,
        "macs": contestant.macs,
        "floor_ms": floor_ms(contestant.macs, contestant.values, batch, entry.precision, limits),
        "gemm_share": gflops_per_s / rates.get(entry.precision, rates["fp32"]),
        "bandwidth_share": moved / p50_ms / 1e6 / limits["copy_gb_per_s"],
        "peak_memory_mb": ready.peak_memory_mb,
        "max_abs_error": ready.max_abs_error,
        "fallback": getattr(contestant.run, "fallback", None),
        "samples_ns": list(durations.samples_ns),
    }


def _by_events(ready: Ready) -> float | None:
    return float(np.median(ready.call.device_ms)) if ready.call.device_ms else None
