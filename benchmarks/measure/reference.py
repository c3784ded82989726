"""A network in PyTorch with images and their expected logits, and the form in which each engine takes the network."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.measure.candidate import Candidate, Program
from benchmarks.measure.measured_network import Network
from export.checkpoint_to_onnx import DEFAULT_OPSET, ONE_IMAGE, Form, Uint8Network, cleaned_proto, rewrite, to_onnx
from export.compare_logits import TIE, Images, Logits, check, check_classes, float32_error, torch_classifier
from export.compiler.pipeline import optimise
from export.compiler.proof.tolerances import allowed
from export.errors import Unavailable
from export.precision import lowered
from export.precision_table import PRECISIONS, EngineKind, Precision, file_precision
from export.sample_images import COUNT
from models.checkpoints.checkpoint import load
from models.data import Dataset
from models.networks.config import ModelConfig
from models.networks.costs import network_macs
from models.networks.foldable_norms import NormFactory
from models.networks.layers import Attention
from models.networks.registry import build, randomise_norms


@dataclass(frozen=True)
class Reference:
    """The unchanged network in PyTorch, and its float32 logits (n, classes) of the `proof_images` (n, C, H, W) uint8.

    `data`: its training images calibrate the conversion to int8.
    """

    network: Network
    model: Uint8Network
    proof_images: Images
    logits: Logits
    data: Dataset
    _graphs: dict[Form, tuple[onnx.ModelProto, int]] = field(default_factory=dict)

    @property
    def config(self) -> ModelConfig:
        return self.network.config

    @cached_property
    def plain(self) -> onnx.ModelProto:
        """The ONNX file before rewrites, float32."""
        return to_onnx(self.model, self.config, DEFAULT_OPSET)

    @cached_property
    def float32_error(self) -> float:
        """How far float32 takes the network from float64, relative to the largest logit.

        Raises EquivalenceError if the error is too large.
        """
        exact, single = (torch_classifier(model) for model in (copy.deepcopy(self.model).double(), self.model))
        return float32_error(self.network.name, exact, single, self.proof_images)

    def graph(self, form: Form) -> tuple[onnx.ModelProto, int]:
        """The rewritten float32 graph, cached, and its multiply-accumulates per image."""
        if form not in self._graphs:
            rewritten = rewrite(self.plain, form)
            if rewritten.steps:
                self._graphs[form] = cleaned_proto(self.plain, rewritten), rewritten.steps[-1].macs
            else:
                self._graphs[form] = self.plain, rewritten.macs
        return self._graphs[form]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the network per image, before rewrites. Exports only networks without a formula."""
        try:
            return network_macs(self.config)
        except ValueError:
            return self.graph(Form("none"))[1]

    def images(self, count: int) -> Images:
        """The proof images, repeated to `count`: uint8 (count, C, H, W)."""
        return np.resize(self.proof_images, (count, *self.proof_images.shape[1:]))

    def check(self, name: str, precision: Precision, count: int, logits: Logits) -> float:
        """The largest absolute error of `logits`, which a candidate computed for `images(count)`.

        Raises EquivalenceError above the tolerance of `precision`, and in float32 for another class.
        """
        expected, tolerance = np.resize(self.logits, (count, self.logits.shape[1])), PRECISIONS[precision].tolerance
        if precision != "fp32":
            return check(name, expected, logits, tolerance)
        error = check(name, expected, logits, allowed(tolerance, self.float32_error))
        check_classes(name, expected, logits, max(TIE, 2 * self.float32_error))
        return error


def make_reference(network: Network) -> Reference:
    """Loads the network's checkpoint. Without a checkpoint the weights are random: time does not depend on weights."""
    try:
        trained = load(network.path).model
    except Unavailable:
        torch.manual_seed(0)
        trained = build(network.config).eval()
        randomise_norms(trained)
    model, images = Uint8Network(trained), network.examples(COUNT)
    return Reference(network, model, images, torch_classifier(model)(images), network.data)


def program(reference: Reference, candidate: Candidate) -> tuple[Program, int]:
    """The PyTorch network or the ONNX file for the candidate's engine, and its multiply-accumulates per image."""
    runtime, precision = candidate.runtime, candidate.precision
    if runtime.takes_network:
        model = copy.deepcopy(reference.model)
        if runtime.fused:
            model.model = with_fused_attention(model.model, reference.config)
        return model.to(getattr(torch, PRECISIONS[precision].dtype)), reference.macs
    proto, macs = reference.graph(Form(runtime.rewrites, runtime.fused))
    return _file(reference, proto, precision, runtime.engine), macs


class FusedAttention(Attention):
    """Attention in one fused kernel."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, scale=self.scale)  # (B, H, N, E)


def with_fused_attention(model: nn.Module, config: ModelConfig) -> nn.Module:
    """A copy in eval mode whose attention is fused; of a network without attention a plain copy."""

    def attention(config: ModelConfig, block: int, norm: NormFactory) -> Attention:
        return FusedAttention(config.block(block), norm)

    fused = build(config, attention).eval()
    fused.load_state_dict(model.state_dict())
    return fused


def rewritten_file(reference: Reference, passes: Sequence[str], precision: Precision = "fp32") -> tuple[bytes, int]:
    """The ONNX file after the passes `passes`, in the compiler's order, and its multiply-accumulates per image."""
    rewritten = optimise(reference.plain, passes=passes, sizes=ONE_IMAGE)
    macs = rewritten.steps[-1].macs if passes else rewritten.macs
    return _file(reference, cleaned_proto(reference.plain, rewritten), precision, "onnxruntime"), macs


def _file(reference: Reference, proto: onnx.ModelProto, precision: Precision, engine: EngineKind) -> bytes:
    in_file, images = file_precision(precision, engine), reference.data.train_images
    data: bytes = lowered(proto, in_file, images, strongly_typed=engine == "tensorrt").SerializeToString()
    return data
