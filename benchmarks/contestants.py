"""What is compared: a model in a runtime, ready to run and checked against the PyTorch baseline.

In: a model's configuration, names of runtimes, a batch size. Out: `Contestant`s, each a function that classifies the
batch and returns when the logits are there; or an error for one whose logits are not those of the baseline.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnxruntime
import torch

from export.equivalence import Images, Logits, prove
from export.graph import DEFAULT_OPSET, FLOAT32_TOLERANCE, Served, proof_images, rewrite, to_onnx
from export.rewrites import pipeline
from models.config import INPUT_NAME, OUTPUT_NAME, ModelConfig, ModelName
from models.layers import Attention
from models.registry import build, randomise_norms

BASELINE = "torch"
RUNTIMES = {
    "torch": "PyTorch eager, as published",
    "torch-sdpa": "PyTorch eager, fused attention",
    "onnx": "ONNX Runtime, plain export",
    "onnx-folded": "ONNX Runtime, norms folded",
    "onnx-optimized": "ONNX Runtime, all rewrites",
}
REWRITES = {"onnx-folded": pipeline.FUSE, "onnx-optimized": pipeline.ALL}


@dataclass(frozen=True)
class Contestant:
    """One row of a comparison; `run` maps uint8 (batch, C, H, W) to float32 logits."""

    model: ModelName
    depth: int | None
    runtime: str
    run: Callable[[], Logits]

    @property
    def name(self) -> str:
        """Model and runtime in one string."""
        return f"{self.model} {self.runtime}"


class Unavailable(Exception):
    """A runtime that this machine cannot run; the message says what is missing."""


def build_contestants(
    config: ModelConfig, runtimes: list[str], batch: int, device: str, threads: int
) -> Iterator[Contestant | Unavailable]:
    """The contestants of one model with random weights and BatchNorm statistics, each checked against the baseline.

    A runtime that is not there is yielded as the reason why. Raises EquivalenceError for one that answers wrongly.
    """
    torch.manual_seed(0)
    network = build(config).eval()
    randomise_norms(network)
    images = np.resize(proof_images(config), (batch, *config.input_shape))
    baseline = Served(network, scale_folded=False)
    expected = _in_torch(baseline, device, images)()
    depth = None if config.model == "cnn" else config.depth
    for runtime in runtimes:
        if runtime == "torch-sdpa" and config.model == "cnn":
            continue  # there is no attention in it
        try:
            run = _runner(runtime, baseline, config, images, device, threads)
        except Unavailable as reason:
            yield reason
            continue
        _check(f"{config.model} {runtime}", expected, run, images)
        yield Contestant(config.model, depth, runtime, run)


def _check(name: str, expected: Logits, found: Callable[[], Logits], images: Images) -> None:
    prove(name, lambda _: expected, lambda _: found(), images, FLOAT32_TOLERANCE, [len(images)])


def _runner(
    runtime: str, baseline: Served, config: ModelConfig, images: Images, device: str, threads: int
) -> Callable[[], Logits]:
    if runtime == "torch":
        return _in_torch(baseline, device, images)
    if runtime == "torch-sdpa":
        fused = copy.deepcopy(baseline)
        for module in fused.modules():
            if isinstance(module, Attention):
                module.fused = True
        return _in_torch(fused, device, images)
    served = baseline
    if runtime in REWRITES:
        served = rewrite(copy.deepcopy(baseline.model).double(), REWRITES[runtime], ())[0].float()
    return _in_onnxruntime(to_onnx(served, config, DEFAULT_OPSET).SerializeToString(), device, threads, images)


def _in_torch(model: Served, device: str, images: Images) -> Callable[[], Logits]:
    on_device = copy.deepcopy(model).to(device)
    batch = torch.tensor(images, device=device)

    def run() -> Logits:
        with torch.inference_mode():
            logits: Logits = on_device(batch).cpu().numpy()  # the copy waits for the device
        return logits

    return run


@cache
def _share_memory() -> None:
    """One CPU arena for all sessions: at batch 5000 each of them holds 2 to 3 GB of its own otherwise."""
    kind, use = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu", kind, 0, use), None)


def _in_onnxruntime(data: bytes, device: str, threads: int, images: Images) -> Callable[[], Logits]:
    provider = "CUDAExecutionProvider" if device == "cuda" else "CPUExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise Unavailable(f"ONNX Runtime on {device}: not measured, {provider} is missing (install onnxruntime-gpu)")
    _share_memory()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False  # would keep a second arena for each shape, and is no faster
    options.add_session_config_entry("session.use_env_allocators", "1")
    session = onnxruntime.InferenceSession(data, options, providers=[provider])

    def run() -> Logits:
        logits: Logits = session.run([OUTPUT_NAME], {INPUT_NAME: images})[0]
        return logits

    return run
