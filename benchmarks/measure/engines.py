"""The table of all engines. It imports none of their libraries, since the commands' help reads it.

A new engine is a function, a row in ENGINES and, if its kind is new, its name in `export/precision_table.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from benchmarks.measure.candidate import Candidate, Classify, Program, Sizes
from benchmarks.measure.devices import cores
from benchmarks.measure.network import Network, shipped_network
from export.precision_table import PRECISIONS, Device, EngineKind, Precision

if TYPE_CHECKING:
    from export.checkpoint_to_onnx import Rewrites
    from models.networks.config import ModelName


def eager(network: Any, candidate: Candidate, sizes: Sizes) -> Classify:
    from benchmarks.measure.run_torch import in_torch

    return in_torch(network, candidate, lambda network: network)


def compiled(network: Any, candidate: Candidate, sizes: Sizes) -> Classify:
    from benchmarks.measure.run_torch import compile_network, in_torch

    return in_torch(network, candidate, compile_network)


def cuda_graphs(network: Any, candidate: Candidate, sizes: Sizes) -> Classify:
    from benchmarks.measure.run_torch import CudaGraphs, in_torch

    return in_torch(network, candidate, CudaGraphs)


def onnxruntime(data: bytes, candidate: Candidate, sizes: Sizes) -> Classify:
    from benchmarks.measure.run_onnxruntime import on_cpu, on_cuda

    if candidate.device == "cpu":
        return on_cpu(data, candidate)
    return on_cuda(data, candidate, ENGINES[candidate.engine].graph)


def openvino(data: bytes, candidate: Candidate, sizes: Sizes) -> Classify:
    from export.engines.openvino_engine import openvino_classifier

    return openvino_classifier(data, candidate.precision == "bf16", candidate.threads)


def tensorrt(data: bytes, candidate: Candidate, sizes: Sizes) -> Classify:
    from benchmarks.measure.run_tensorrt import in_tensorrt

    return in_tensorrt(data, candidate, sizes, ENGINES[candidate.engine].graph)


@dataclass(frozen=True)
class Engine:
    """`label`: the engine's name in tables. `kind`: its name in the table of precisions.

    `start`: takes a network if `kind` is torch, else the bytes of an ONNX file. `devices`: where `start` can run.
    `fused`: attention has the form that GPU kernels fuse. `graph`: a call replays a CUDA graph. `runtimes`: name for
    `--runtime` -> the rewrites before the engine, and their name in tables.
    """

    label: str
    kind: EngineKind
    start: Callable[[Any, Candidate, Sizes], Classify]
    devices: tuple[Device, ...] = ("cpu", "cuda")
    fused: bool = False
    graph: bool = False
    runtimes: Mapping[str, tuple[Rewrites, str]] = field(default_factory=dict)

    @property
    def takes_network(self) -> bool:
        return self.kind == "torch"

    def precisions(self, device: Device) -> tuple[Precision, ...]:
        """The precisions that are measured on `device`; empty if the engine cannot run there."""
        if device not in self.devices:
            return ()
        return tuple(name for name, row in PRECISIONS.items() if self.kind in row.engines(device))


ENGINES: dict[str, Engine] = {
    "torch": Engine("PyTorch eager", "torch", eager, runtimes={"torch": ("none", "as published")}),
    "torch-sdpa": Engine(
        "PyTorch eager", "torch", eager, fused=True, runtimes={"torch-sdpa": ("none", "fused attention")}
    ),
    "torch-compile": Engine(
        "PyTorch compiled", "torch", compiled, runtimes={"torch-compile": ("none", "as published")}
    ),
    "torch-cudagraphs": Engine(
        *("PyTorch CUDA graphs", "torch", cuda_graphs, ("cuda",)),
        fused=True,
        graph=True,
        runtimes={"torch-cudagraphs": ("none", "fused attention")},
    ),
    "onnxruntime": Engine(
        *("ONNX Runtime", "onnxruntime", onnxruntime),
        runtimes={
            "onnx": ("none", "plain export"),
            "onnx-folded": ("bn", "norms folded"),
            "onnx-optimized": ("all", "all rewrites"),
        },
    ),
    "onnxruntime-cudagraph": Engine(
        *("ONNX Runtime", "onnxruntime", onnxruntime, ("cuda",)),
        graph=True,
        runtimes={"onnx-cudagraph": ("all", "all rewrites, CUDA graph")},
    ),
    "openvino": Engine("OpenVINO", "openvino", openvino, runtimes={"openvino": ("all", "all rewrites")}),
    "tensorrt": Engine(
        *("TensorRT", "tensorrt", tensorrt),
        fused=True,
        runtimes={
            "tensorrt-plain": ("none", "plain export"),
            "tensorrt-folded": ("bn", "norms folded"),
            "tensorrt": ("all", "all rewrites"),
        },
    ),
    "tensorrt-cudagraph": Engine(
        *("TensorRT", "tensorrt", tensorrt),
        fused=True,
        graph=True,
        runtimes={"tensorrt-cudagraph": ("all", "all rewrites, CUDA graph")},
    ),
}
SERVED_ENGINES = ("onnxruntime", "openvino", "tensorrt")  # Triton has a backend for each

RUNTIMES: dict[str, tuple[str, Rewrites]] = {
    name: (engine_name, rewrites)
    for engine_name, engine in ENGINES.items()
    for name, (rewrites, _) in engine.runtimes.items()
}
"""Name for `--runtime` -> engine and rewrites."""

COMPARED: tuple[ModelName, ...] = ("vit", "vitbnffn", "vitbn", "cnn")
ORT = f"{ENGINES['onnxruntime'].label}, float32"
BASELINE = "torch"
DEFAULT_RUNTIMES: dict[Device, tuple[str, ...]] = {
    "cpu": ("torch", "onnx-folded", "onnx-optimized"),  # all models at batch 5000 in about two minutes
    "cuda": (
        *("torch", "torch-compile", "torch-cudagraphs", "onnx-folded", "onnx-optimized", "onnx-cudagraph"),
        *("tensorrt", "tensorrt-cudagraph"),
    ),
}
DEFAULT_PRECISIONS: dict[Device, tuple[Precision, ...]] = {"cpu": ("fp32",), "cuda": ("fp32", "fp16")}


DEFAULT = Candidate(shipped_network("vitbn"))


def start(program: Program, candidate: Candidate = DEFAULT, sizes: Sizes = (1,)) -> Classify:
    """Starts the candidate's engine for calls with `sizes` images. By default: ONNX Runtime on all cores of the CPU.

    Raises Unavailable without the library or the device.
    """
    return ENGINES[candidate.engine].start(program, replace(candidate, threads=candidate.threads or cores()), sizes)


def candidates(
    networks: Sequence[Network],
    runtimes: Sequence[str],
    precisions: Sequence[Precision],
    threads: int,
    device: Device,
) -> list[Candidate]:
    """Every combination. `runtimes`: names for `--runtime`."""
    return [
        Candidate(network, engine, precision, threads, device, rewrites)
        for network in networks
        for engine, rewrites in map(RUNTIMES.__getitem__, runtimes)
        for precision in precisions
    ]


def name_of(candidate: Candidate) -> str:
    """The candidate's name in messages."""
    return f"{candidate.model} {runtime_of(candidate)} {candidate.precision}"


def runtime_of(candidate: Candidate) -> str:
    """The candidate's name for `--runtime`."""
    engine_and_rewrites = (candidate.engine, candidate.rewrites)
    return next(name for name, pair in RUNTIMES.items() if pair == engine_and_rewrites)


def label_of(candidate: Candidate) -> str:
    """The candidate's engine and rewrites in tables."""
    engine = ENGINES[candidate.engine]
    return f"{engine.label}, {engine.runtimes[runtime_of(candidate)][1]}"


def why_not(candidate: Candidate) -> str | None:
    """Why the candidate cannot be measured; None if only the attempt can tell."""
    engine, precision, device = ENGINES[candidate.engine], candidate.precision, candidate.device
    precisions = engine.precisions(device)
    if not precisions:
        return f"{engine.label} needs another device than {device}"
    if precision not in precisions:
        return f"{engine.label} on {device} is measured only in {', '.join(precisions)}"
    if candidate.engine == "torch-sdpa" and not candidate.config.is_transformer:
        return "the network has no attention"
    return None
