"""A candidate: a network, the runtime that computes it, its precision, threads and device. `engines.py` starts it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.measure.measured_network import Network
from export.precision_table import PRECISIONS, Device, EngineKind, Precision

if TYPE_CHECKING:
    from export.checkpoint_to_onnx import Rewrites, Uint8Network
    from models.networks.config import ModelConfig

Program: TypeAlias = "Uint8Network | bytes"
"""A PyTorch network, or the bytes of an ONNX file."""
Classify = Callable[[Any], Any]
"""uint8 images (B, C, H, W) -> float32 logits (B, classes): numpy arrays on the CPU, tensors on CUDA.

On CUDA a call may return before the device has finished.
"""
Sizes = tuple[int, ...]
"""The batch sizes of all later calls. TensorRT optimises an engine for each size, in a profile."""


@dataclass(frozen=True)
class Runtime:
    """A way to compute a network. `name`: for `--runtime`. `label`: in tables, the engine before the first comma.

    `engine`: its name in the table of precisions. `start`: takes a network if the engine is torch, else the bytes of an
    ONNX file. `rewrites`: what the network goes through before. `fused`: attention has the form that GPU kernels fuse.
    `graph`: a call replays a CUDA graph.
    """

    name: str
    label: str
    engine: EngineKind
    start: Callable[[Any, Candidate, Sizes], Classify]
    rewrites: Rewrites
    fused: bool = False
    graph: bool = False

    @property
    def takes_network(self) -> bool:
        return self.engine == "torch"

    @property
    def library(self) -> str:
        """The label without the rewrites."""
        return self.label.partition(",")[0]

    def precisions(self, device: Device) -> tuple[Precision, ...]:
        """The precisions that are measured on `device`; empty if the runtime cannot run there."""
        if self.graph and device == "cpu":
            return ()
        return tuple(name for name, row in PRECISIONS.items() if self.engine in row.engines(device))


@dataclass(frozen=True)
class Candidate:
    """`threads`: of the CPU, 0 for all cores."""

    network: Network
    runtime: Runtime
    precision: Precision = "fp32"
    threads: int = 0
    device: Device = "cpu"

    @property
    def model(self) -> str:
        return self.network.name

    @property
    def config(self) -> ModelConfig:
        return self.network.config

    @property
    def name(self) -> str:
        """In messages."""
        return f"{self.model} {self.runtime.name} {self.precision}"

    @property
    def row(self) -> dict[str, Any]:
        """The candidate's fields in a row of a result."""
        runtime = {"engine": self.runtime.engine, "rewrites": self.runtime.rewrites}
        return runtime | {name: getattr(self, name) for name in ("model", "precision", "threads", "device")}
