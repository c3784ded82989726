"""A network -> itself for PyTorch, an ONNX file for other runtimes."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from benchmarks.contest.floors import moved_values
from benchmarks.contest.runtimes import TORCH_ENGINES, Precision, Runtime
from benchmarks.contest.subjects import Subject
from export.graph import DEFAULT_OPSET, Served, rewrite, to_onnx
from export.precision import Lowering, convert
from export.rewrites import pipeline
from export.rewrites.fuse import fuse_attention
from models.data import load_digits
from models.macs import macs_per_image

REWRITES = {"none": (), "folded": pipeline.FUSE, "all": pipeline.ALL}
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

Program = Served | bytes
"""A PyTorch network, or the bytes of an ONNX file."""


def for_runtime(subject: Subject, how: Runtime, precision: Precision) -> tuple[Program, int, int]:
    """The program, and an image's multiply-accumulates and moved values."""
    network = _rewritten(subject, REWRITES[how.rewrites])
    macs, values = macs_per_image(network.model), moved_values(network.model)
    if how.fused and subject.config.is_transformer:
        network.model = fuse_attention(network.model)
    if how.engine in TORCH_ENGINES:
        return network.to(DTYPES[precision]), macs, values
    return _file(subject, network, precision, how.half_softmax), macs, values


def rewritten_file(
    subject: Subject, rewrites: Sequence[pipeline.Rewrite], precision: Precision = "fp32"
) -> tuple[bytes, int]:
    network = _rewritten(subject, rewrites)
    return _file(subject, network, precision), macs_per_image(network.model)


def _rewritten(subject: Subject, rewrites: Sequence[pipeline.Rewrite]) -> Served:
    network = copy.deepcopy(subject.network)
    return rewrite(network.model.double(), rewrites, ())[0].float() if rewrites else network


def _file(subject: Subject, network: Served, precision: Precision, half_softmax: bool = False) -> bytes:
    proto = to_onnx(network, subject.config, DEFAULT_OPSET)
    if precision in ("fp16", "int8"):
        proto, _ = convert(proto, Lowering(precision, load_digits(), 100, half_softmax))
    data: bytes = proto.SerializeToString()
    return data
