"""What is compared: a model in a runtime, ready to run and checked against the PyTorch baseline.

In: a model's configuration and the name of a runtime. Out: a function from images to logits that returns when they are
there; or an error for one whose logits are not those of the baseline.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnxruntime
import torch

from export.equivalence import Classifier, Images, Logits, proof_images, prove
from export.graph import DEFAULT_OPSET, FLOAT32_TOLERANCE, Served, rewrite, to_onnx
from export.rewrites import pipeline
from models import macs
from models.catalog import matching
from models.checkpoint import load
from models.config import INPUT_NAME, OUTPUT_NAME, ModelConfig, ModelName
from models.layers import Attention
from models.registry import build, randomise_norms

RUNTIMES = {
    "torch": "PyTorch eager, as published",
    "torch-sdpa": "PyTorch eager, fused attention",
    "onnx": "ONNX Runtime, plain export",
    "onnx-folded": "ONNX Runtime, norms folded",
    "onnx-optimized": "ONNX Runtime, all rewrites",
}
REWRITES = {"onnx": (), "onnx-folded": pipeline.FUSE, "onnx-optimized": pipeline.ALL}

CHECKED = 512  # images whose logits are compared with the baseline's; all 5,000 would take a minute a model

Program = Served | bytes
"""A PyTorch network, or the bytes of an ONNX file."""


@dataclass(frozen=True)
class Contestant:
    """One row of a comparison."""

    model: ModelName
    depth: int | None
    runtime: str
    classify: Classifier

    @property
    def name(self) -> str:
        """Model and runtime in one string."""
        return f"{self.model} {self.runtime}"


class Unavailable(Exception):
    """A runtime that this machine or model does not have; the message says what is missing."""


def example_images(config: ModelConfig, count: int) -> Images:
    """uint8 (count, C, H, W): the images of the exporter's proof, again and again."""
    return np.resize(proof_images(config), (count, *config.input_shape))


def baseline(config: ModelConfig) -> Served:
    """The shipped network of `config`, or one with random weights and statistics; time does not depend on them."""
    if path := matching(config):
        return Served(load(path).model, scale_folded=False)
    torch.manual_seed(0)
    network = build(config).eval()
    randomise_norms(network)
    return Served(network, scale_folded=False)


def program(config: ModelConfig, runtime: str) -> Program:
    """The baseline as `runtime` takes it. Raises Unavailable where the model has no use for that runtime."""
    network = baseline(config)
    if runtime == "torch":
        return network
    if runtime == "torch-sdpa":
        if not config.is_transformer:
            reason = "not measured, there is no attention in it"
            raise Unavailable(f"{config.model}, PyTorch with fused attention: {reason}")
        for module in network.modules():
            if isinstance(module, Attention):
                module.fused = True
        return network
    served, _ = rewrite(network.model.double(), REWRITES[runtime], ())
    return bytes(to_onnx(served.float(), config, DEFAULT_OPSET).SerializeToString())


def start(program: Program, device: str, threads: int) -> Classifier:
    """A function that classifies on `device` with that many threads; raises Unavailable where a library is missing."""
    return (
        _in_onnxruntime(program, device, threads) if isinstance(program, bytes) else _in_torch(program, device, threads)
    )


def contestant(config: ModelConfig, runtime: str, images: Images, device: str, threads: int) -> Contestant:
    """One model in one runtime, checked against PyTorch eager on `images`.

    Raises Unavailable for a runtime that is not there, EquivalenceError for one that answers wrongly.
    """
    classify = start(program(config, runtime), device, threads)
    expected = start(baseline(config), device, threads)
    prove(f"{config.model} {runtime}", expected, classify, images, FLOAT32_TOLERANCE, [min(len(images), CHECKED)])
    return Contestant(config.model, config.depth if config.is_transformer else None, runtime, classify)


def macs_per_image(config: ModelConfig, runtime: str) -> int:
    """Multiply-accumulates of one image in `runtime`, after the rewrites that it stands for."""
    served, _ = rewrite(baseline(config).model.double(), REWRITES.get(runtime, ()), ())
    return macs.macs_per_image(served.model)


def _in_torch(model: Served, device: str, threads: int) -> Classifier:
    on_device = copy.deepcopy(model).to(device)

    def classify(images: Images) -> Logits:
        torch.set_num_threads(threads)  # of the calling thread
        with torch.inference_mode():
            logits: Logits = (
                on_device(torch.from_numpy(images).to(device)).cpu().numpy()
            )  # the copy waits for the device
        return logits

    return classify


@cache
def _share_memory() -> None:
    """One CPU arena for all sessions: at batch 5000 each of them holds 2 to 3 GB of its own otherwise."""
    kind, use = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
    onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu", kind, 0, use), None)


def _in_onnxruntime(data: bytes, device: str, threads: int) -> Classifier:
    provider = "CUDAExecutionProvider" if device == "cuda" else "CPUExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise Unavailable(f"ONNX Runtime on {device}: not measured, {provider} is missing (install onnxruntime-gpu)")
    _share_memory()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False  # would keep a second arena for each shape, and is no faster
    options.add_session_config_entry("session.use_env_allocators", "1")
    session = onnxruntime.InferenceSession(data, options, providers=[provider])

    def classify(images: Images) -> Logits:
        logits: Logits = session.run([OUTPUT_NAME], {INPUT_NAME: images})[0]
        return logits

    return classify
