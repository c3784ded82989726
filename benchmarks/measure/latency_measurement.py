"""From candidates to the rows of a latency result: a first call whose logits are checked, then interleaved rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import click
import numpy as np

from benchmarks.measure.candidate import Candidate
from benchmarks.measure.devices import free, gpu_uuid
from benchmarks.measure.engines import BASELINE
from benchmarks.measure.first_calls import BuiltCandidate, CalledCandidate, Missing, build_all, first_calls
from benchmarks.measure.gpu_state import monitor
from benchmarks.measure.interleaved_timing import (
    MIN_ROUNDS,
    ON_A_CPU,
    ON_A_GPU,
    Durations,
    Slowed,
    is_stable,
    ratio_with_interval,
    time_interleaved,
)
from benchmarks.measure.peak_flops_and_bandwidth import Limits
from benchmarks.measure.result_file import Record, Row

MIN_ROUNDS_ON_A_GPU = 15  # clocks and power vary

# The row's key of the time with copies -> the suffix of its name among the timed calls.
COPIES = {"copies_p50_ms": " with copies", "overlapped_p50_ms": " with copies beside the computing"}


class Comparison:
    """Measures groups of candidates, and adds their rows to a result after each batch size.

    `limits`: of the machine. `show`: prints the new rows. `missing`: the candidates that are not measured.
    """

    def __init__(self, record: Record, limits: Limits, show: Callable[[Sequence[Row]], object]) -> None:
        self._record, self._limits, self._show = record, limits, show
        self.missing, self.rows = Missing(), list[Row]()

    def measure(
        self,
        candidates: Sequence[Candidate],
        batches: Sequence[int],
        seconds: float,
        title: str | None = None,
        **fields: Any,
    ) -> None:
        """Adds a row for each candidate and batch size, also after Ctrl-C; then frees the candidates' memory.

        `seconds`: for the rounds of a batch size. `fields`: of all these rows. A candidate that fails becomes missing,
        and the others begin again. If the device slows itself down in every round, all become missing.
        """
        built = build_all(candidates, batches, self.missing)
        for batch in batches if built else ():
            self._measure(built, batch, seconds, title or f"batch {batch}", fields)
        del built
        free()

    def finish(self) -> None:
        """Writes all rows. Raises ClickException if no candidate was timed."""
        if not self._record.rows:
            raise click.ClickException("nothing to measure: expected one of --runtime on this machine, found none")
        self._record.update([*self.rows, *self.missing.rows])  # the last group may have only missing candidates

    def _measure(
        self,
        built: Sequence[BuiltCandidate],
        batch: int,
        seconds: float,
        title: str,
        fields: Mapping[str, Any],
    ) -> None:
        candidates = first_calls(built, batch, title, self.missing)
        called = {str(i): candidate for i, candidate in enumerate(candidates)}
        rounds = Rounds(called, batch, seconds, title, self.missing)

        def add(measured: dict[str, Durations]) -> None:
            rows = [{**fields, **row} for row in rounds.rows(measured, self._limits.measure_again())]
            self.rows += rows
            self._record.update([*self.rows, *self.missing.rows], self._limits.best)
            self._show(rows)

        rounds.time(add)


@dataclass
class Rounds:
    """The timed rounds of candidates on a device. `_called`: by their names in the rounds."""

    _called: dict[str, CalledCandidate]
    _batch: int
    _seconds: float
    _title: str
    _missing: Missing

    def __post_init__(self) -> None:
        self._on_a_gpu = any(called.built.candidate.device == "cuda" for called in self._called.values())
        self._monitor = monitor(gpu_uuid()) if self._on_a_gpu else None
        self._protocol = replace(ON_A_GPU if self._on_a_gpu else ON_A_CPU, ended=self._end_round)
        if self._monitor:
            self._protocol = replace(self._protocol, accept=self._monitor.undisturbed)

    def time(self, use: Callable[[dict[str, Durations]], object]) -> None:
        """Times all candidates; without a candidate that fails, it starts over. `use`: as in `time_interleaved`."""
        while True:
            try:
                return self._interleaved(use)
            except _Failed as failed:
                self._missing.add(self._called.pop(failed.name).built.candidate, failed.reason)
                self._forget()
                free()
            except Slowed as reason:
                for called in self._called.values():
                    self._missing.add(called.built.candidate, reason)
                self._called.clear()

    def rows(self, measured: Mapping[str, Durations], limits: Mapping[str, Any]) -> list[Row]:
        """JSON-ready rows. `limits`: as `peak_flops_and_bandwidth.limits` returns them."""
        rows = list[Row]()
        for name, called in self._called.items():
            row: dict[str, Any] = {"stable": self._stable(measured, name)}
            same_precision = called.built.candidate.precision
            for key, precision in (("ratio_to_torch", "fp32"), ("ratio_to_same_precision", same_precision)):
                baseline = self._baseline(name, precision)
                row[key] = asdict(ratio_with_interval(measured[baseline], measured[name])) if baseline else None
            if self._monitor:
                row["gpu_state"] = self._monitor.summary()
            for key, suffix in COPIES.items():
                if copies := measured.get(f"{name}{suffix}"):
                    row[key] = copies.percentile_ms(50)
            rows.append(_row(called, measured[name], self._batch, limits) | row)
        return rows

    def _interleaved(self, use: Callable[[dict[str, Durations]], object]) -> None:
        runs = {name: partial(_call, name, called.calls) for name, called in self._called.items()}
        if self._on_a_gpu:
            for name, called in self._called.items():
                with_copies = called.calls.with_copies, called.calls.overlapped
                for suffix, call in zip(COPIES.values(), with_copies, strict=True):
                    runs[f"{name}{suffix}"] = partial(_call, name, call)
        time_interleaved(
            runs,
            self._seconds,
            self._title,
            MIN_ROUNDS_ON_A_GPU if self._on_a_gpu else MIN_ROUNDS,
            enough=lambda so_far: all(self._stable(so_far, name) for name in self._called),
            warm_up_ns={name: called.warm_ns for name, called in self._called.items() if called.warm_ns},
            protocol=self._protocol,
            use=use,
        )

    def _baseline(self, name: str, precision: str = "fp32") -> str | None:
        """The name of PyTorch eager for the same network in `precision`; None if it is not measured."""
        network = self._called[name].built.candidate.network
        for other, called in self._called.items():
            candidate = called.built.candidate
            if (candidate.network, candidate.runtime.name, candidate.precision) == (network, BASELINE, precision):
                return other
        return None

    def _stable(self, measured: Mapping[str, Durations], name: str) -> bool:
        return is_stable(measured[name], measured[self._baseline(name) or name])

    def _end_round(self, counts: bool) -> None:
        for called in self._called.values():
            called.calls.end_round(counts)

    def _forget(self) -> None:
        """Drops the times and GPU readings of an aborted attempt."""
        for called in self._called.values():
            called.calls.forget()
        if self._monitor:
            self._monitor.readings.clear()


class _Failed(Exception):
    def __init__(self, name: str, reason: Exception) -> None:
        super().__init__(name)
        self.name, self.reason = name, reason


def _call(name: str, call: Callable[[], object]) -> object:
    try:
        return call()
    except Exception as reason:  # engines raise anything
        raise _Failed(name, reason) from reason


def _row(called: CalledCandidate, durations: Durations, batch: int, limits: Mapping[str, Any]) -> dict[str, Any]:
    """`bandwidth_share`: weights, images and logits, moved once. `fallback`: why the candidate runs without its CUDA
    graph.
    """
    built, candidate = called.built, called.built.candidate
    config, p50_ms = candidate.config, durations.percentile_ms(50)
    gflops_per_s = 2 * built.macs * batch / p50_ms / 1e6
    gemms = limits["gemm_gflops_per_s_by_precision"]
    moved_bytes = built.weight_bytes + batch * (int(np.prod(config.input_shape)) + 4 * config.num_classes)
    return {
        "model": candidate.model,
        "depth": config.depth if config.is_transformer else None,
        "dim": config.dim if config.is_transformer else None,
        "runtime": candidate.runtime.name,
        "label": candidate.runtime.label,
        "precision": candidate.precision,
        "batch": batch,
        "threads": candidate.threads,
        "device": candidate.device,
        "rounds": len(durations.samples_ns),
        "calls": len(durations.calls_ns or durations.samples_ns),
        "device_p50_ms": float(np.median(called.calls.device_ms)) if called.calls.device_ms else None,
        "images_per_s": 1000 * batch / p50_ms,
        "first_call_ms": called.first_call_ns / 1e6,
        "macs": built.macs,
        "gemm_share": gflops_per_s / gemms.get(candidate.precision, gemms["fp32"]),
        "bandwidth_share": moved_bytes / p50_ms / 1e6 / limits["copy_gb_per_s"],
        "peak_memory_mb": called.peak_memory_mb,
        "max_abs_error": called.max_abs_error,
        "fallback": getattr(built.run, "fallback", None),
        **durations.row(),
    }
