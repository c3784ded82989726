"""What is compared: a model in a runtime and a precision, ready to run, and the check of its answers.

In: a model's configuration and the name of a runtime. Out: a function from images to logits; an error for one that is
not there, and for one whose logits are not those of PyTorch eager in float32 on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.onnx_engines import in_onnxruntime, in_openvino, in_tensorrt
from benchmarks.runtimes import RUNTIMES, TORCH_ENGINES, Device, Engine, Precision, why_not
from benchmarks.torch_engines import Run, in_torch
from benchmarks.unavailable import Unavailable
from benchmarks.ways import cores
from export.equivalence import Images, Logits, ValuesDiffer, proof_images, prove
from export.graph import DEFAULT_OPSET, FLOAT32_TOLERANCE, Served, rewrite, to_onnx
from export.precision import Lowering, convert
from export.rewrites import pipeline
from models.catalog import matching
from models.checkpoint import load
from models.config import ModelConfig
from models.data import load_digits
from models.layers import Attention
from models.macs import macs_per_image
from models.registry import build, randomise_norms

REWRITES = {"none": (), "folded": pipeline.FUSE, "all": pipeline.ALL}
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

CHECKED = 512  # images whose logits are compared with the baseline's; all 5,000 would take a minute a model

# Of the largest logit, for what computes below float32: such a comparison tells a broken network from a rounded one,
# and benchmarks/accuracy.py what the rounding costs. Measured on vit, vitbnffn, vitbn (depth 1 or 6) and cnn, in so far
# as the CPU has it: fp16 0.0008 (TF32 keeps as many bits), bf16 0.012, int8 0.045. Without the 1/255, vitbn and cnn are
# off by more than 38; vit and vitbnffn, whose first LayerNorm takes a scale away, by 0.013 to 0.021: only fp16 tells.
TOLERANCES: dict[Precision, float] = {"tf32": 0.01, "fp16": 0.01, "bf16": 0.05, "int8": 0.15}

Program = Served | bytes
"""A PyTorch network, or the bytes of an ONNX file."""


@dataclass(frozen=True)
class Contestant:
    """One row of a comparison; `run` takes and gives back what lies in the memory of its device."""

    config: ModelConfig
    runtime: str
    precision: Precision
    program: Program
    run: Run
    macs: int

    @property
    def name(self) -> str:
        """Model, runtime and precision in one string."""
        return f"{self.config.model} {self.runtime} {self.precision}"

    @property
    def weight_bytes(self) -> int:
        """What every call has to read beside the images: the weights and tables, or the file that holds them."""
        if isinstance(self.program, bytes):
            return len(self.program)
        return sum(tensor.nbytes for tensor in (*self.program.parameters(), *self.program.buffers()))


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


def contestant(
    config: ModelConfig, runtime: str, precision: Precision, device: Device, threads: int, batches: Sequence[int]
) -> Contestant:
    """One model in one runtime, for calls with `batches` images; raises Unavailable, which says why it is not there."""
    how = RUNTIMES[runtime]
    if reason := why_not(how, precision, device):
        raise Unavailable(reason)
    made, macs = _made(config, runtime, precision)
    if how.engine == "tensorrt" and isinstance(made, bytes):
        run = in_tensorrt(made, config, precision, max(batches))
    else:
        run = start(made, device, threads, how.engine, precision)
    return Contestant(config, runtime, precision, made, run, macs)


def program(config: ModelConfig, runtime: str, precision: Precision = "fp32") -> Program:
    """The baseline as `runtime` takes it. Raises Unavailable where the model has no use for that runtime."""
    return _made(config, runtime, precision)[0]


def start(
    program: Program, device: Device, threads: int, engine: Engine | None = None, precision: Precision = "fp32"
) -> Run:
    """`program` on `device` with that many threads, in PyTorch eager or ONNX Runtime where no engine is named.

    Raises Unavailable where a library is missing.
    """
    if not isinstance(program, bytes):
        return in_torch(program, engine or "eager", device, threads, precision)
    if engine == "openvino":
        return in_openvino(program, threads, precision)
    return in_onnxruntime(program, device, threads, precision)


def expected_logits(config: ModelConfig, images: Images) -> Logits:
    """What every contestant has to answer to `images`, float32 (n, classes)."""
    logits: Logits = start(baseline(config), "cpu", cores())(images)
    return logits


def check(name: str, precision: Precision, expected: Logits, found: Logits) -> float:
    """The largest absolute difference of two logits (n, classes); raises EquivalenceError where it is too large."""
    if precision == "fp32":
        images: Images = np.zeros((len(expected), 1), np.uint8)  # both have answered already
        proof = prove(name, lambda _: expected, lambda _: found, images, FLOAT32_TOLERANCE, [len(expected)])
        return proof.max_abs_error
    largest = float(np.abs(expected).max())
    error = float(np.abs(found - expected).max()) if found.shape == expected.shape else np.nan
    if not error <= TOLERANCES[precision] * largest:  # so written, NaN fails
        limit = f"an error of at most {TOLERANCES[precision]:g} of the largest logit, {largest:.3g}"
        raise ValuesDiffer(f"{name}: expected logits {expected.shape} and {limit}, found {found.shape} and {error:.2e}")
    return error


def _made(config: ModelConfig, runtime: str, precision: Precision) -> tuple[Program, int]:
    """The program, and the multiply-accumulates of one image in it."""
    how = RUNTIMES[runtime]
    if how.fused and not config.is_transformer:
        raise Unavailable("there is no attention in it")
    network = baseline(config)
    if how.rewrites != "none":
        network = rewrite(network.model.double(), REWRITES[how.rewrites], ())[0].float()
    macs = macs_per_image(network.model)
    for module in network.modules():
        if isinstance(module, Attention):
            module.fused = how.fused
    if how.engine in TORCH_ENGINES:
        return network.to(DTYPES[precision]), macs
    proto = to_onnx(network, config, DEFAULT_OPSET)
    if precision in ("fp16", "int8"):
        proto = convert(proto, Lowering(precision, load_digits(), max_drop_points=100)).proto
    return proto.SerializeToString(), macs
