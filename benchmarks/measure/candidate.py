"""A candidate: a network, the rewrites applied to it, and the engine that runs it. Data alone; `engines.py` runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.measure.network import Network
from export.precision_table import Device, Precision

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
class Candidate:
    """`threads`: of the CPU, 0 for all cores. `rewrites`: what the network went through before the engine got it."""

    network: Network
    engine: str = "onnxruntime"
    precision: Precision = "fp32"
    threads: int = 0
    device: Device = "cpu"
    rewrites: Rewrites = "all"

    @property
    def model(self) -> str:
        return self.network.name

    @property
    def config(self) -> ModelConfig:
        return self.network.config

    @property
    def row(self) -> dict[str, Any]:
        """The candidate's fields in a row of a result."""
        names = ("model", "engine", "precision", "threads", "device", "rewrites")
        return {name: getattr(self, name) for name in names}
