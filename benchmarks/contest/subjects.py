"""A network under test: its weights, its images, and the expected logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.contest.runtimes import Precision
from export.equivalence import Images, Logits, ValuesDiffer, compare, proof_images, torch_classifier
from export.graph import Served
from models.catalog import matching
from models.checkpoint import load
from models.config import ModelConfig
from models.registry import build, randomise_norms

# Relative to the largest logit. Measured on vit, vitbnffn, vitbn and cnn: fp16 0.0008 (TF32 has as many bits), bf16
# 0.012, int8 0.045. Without the 1/255, vit and vitbnffn err by only 0.013 to 0.021 (their first LayerNorm removes a
# scale): bf16 and int8 miss that.
TOLERANCES: dict[Precision, float] = {"fp32": 2e-5, "tf32": 0.01, "fp16": 0.01, "bf16": 0.05, "int8": 0.15}


@dataclass(frozen=True)
class Subject:
    """An unchanged network, and PyTorch's float32 logits (n, classes) of the `proof` images."""

    config: ModelConfig
    network: Served
    proof: Images
    logits: Logits

    def images(self, count: int) -> Images:
        """uint8 (count, C, H, W)."""
        return np.resize(self.proof, (count, *self.proof.shape[1:]))

    def check(self, name: str, precision: Precision, count: int, logits: Logits) -> float:
        """The largest absolute error of the first `count` images' logits; raises EquivalenceError."""
        expected = np.resize(self.logits, (count, self.logits.shape[1]))
        largest = float(np.abs(expected).max())
        if precision == "fp32":
            images: Images = np.zeros((count, 1), np.uint8)  # dummies: the logits are already known
            tolerance = TOLERANCES[precision] * largest
            return compare(name, lambda _: expected, lambda _: logits, images, tolerance, [count]).max_abs_error
        error = float(np.abs(logits - expected).max()) if logits.shape == expected.shape else np.nan
        if not error <= TOLERANCES[precision] * largest:  # NaN fails too
            limit = f"an error of at most {TOLERANCES[precision]:g} of the largest logit, {largest:.3g}"
            what = f"expected logits {expected.shape} and {limit}"
            raise ValuesDiffer(f"{name}: {what}, found {logits.shape} and {error:.2e}")
        return error


def subject(config: ModelConfig) -> Subject:
    """Time does not depend on weights: without a checkpoint they are random."""
    if path := matching(config):
        model = load(path).model
    else:
        torch.manual_seed(0)
        model = build(config).eval()
        randomise_norms(model)
    network, proof = Served(model, scale_folded=False), proof_images(config)
    return Subject(config, network, proof, torch_classifier(network)(proof))


def example_images(config: ModelConfig, count: int) -> Images:
    """uint8 (count, C, H, W), repeated."""
    return np.resize(proof_images(config), (count, *config.input_shape))
