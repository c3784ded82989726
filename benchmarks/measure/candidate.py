"""What is measured: a network after rewrites in an engine. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from benchmarks.measure.engines import ENGINES, RUNTIMES, Classify, Device, Precision, Rewrites, Sizes, why_not
from benchmarks.measure.machine import cores
from models.catalog import shipped
from models.config import ModelConfig

if TYPE_CHECKING:
    from benchmarks.measure.networks import Program


@dataclass(frozen=True)
class Candidate:
    """`threads` of the CPU, 0 for all cores. `geometry`: of another network than the shipped one of that name."""

    model: str = ModelConfig.model
    engine: str = "onnxruntime"
    precision: Precision = "fp32"
    threads: int = 0
    device: Device = "cpu"
    rewrites: Rewrites = "all"
    geometry: ModelConfig | None = None

    def build(self, sizes: Sizes = (1,)) -> Classify:
        """For calls with `sizes` images. Raises Unavailable without the library or the device."""
        from benchmarks.measure.networks import program, reference

        return start(program(reference(self.config), self)[0], self, sizes)

    @property
    def config(self) -> ModelConfig:
        from models.checkpoint import read_config

        return self.geometry or read_config(shipped(self.model))

    @property
    def row(self) -> dict[str, Any]:
        """Its fields in a result."""
        names = ("model", "engine", "precision", "threads", "device", "rewrites")
        return {name: getattr(self, name) for name in names}

    @property
    def name(self) -> str:
        return f"{self.model} {self.runtime} {self.precision}"

    @property
    def runtime(self) -> str:
        """Its name for `--runtime`."""
        return next(name for name, form in RUNTIMES.items() if form == (self.engine, self.rewrites))

    @property
    def label(self) -> str:
        engine = ENGINES[self.engine]
        return f"{engine.label}, {engine.runtimes[self.runtime][1]}"

    def why_not(self) -> str | None:
        """None if it can be measured, as far as is known without a try."""
        if reason := why_not(self.engine, self.precision, self.device):
            return reason
        if self.engine == "torch-sdpa" and not self.config.is_transformer:
            return "the network has no attention"
        if self.precision == "fp16-softmax" and not self.config.is_transformer:
            return "the network has no softmax"
        return None


IN_ONNX_RUNTIME = Candidate()


def start(program: Program, candidate: Candidate = IN_ONNX_RUNTIME, sizes: Sizes = (1,)) -> Classify:
    """Of the candidate's engine and device alone. Raises Unavailable without the library or the device."""
    return ENGINES[candidate.engine].start(program, replace(candidate, threads=candidate.threads or cores()), sizes)


def candidates(
    models: Sequence[tuple[str, ModelConfig]],
    runtimes: Sequence[str],
    precisions: Sequence[Precision],
    threads: int,
    device: Device,
) -> list[Candidate]:
    return [
        Candidate(model, engine, precision, threads, device, rewrites, config)
        for model, config in models
        for engine, rewrites in map(RUNTIMES.__getitem__, runtimes)
        for precision in precisions
    ]
