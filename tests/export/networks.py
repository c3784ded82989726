"""Networks of any geometry with norms far from the identity, and their graphs in float64."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import onnx
import onnx_ir as ir
import random_networks
import torch
from hypothesis import strategies as st
from torch import nn

from export.checkpoint_to_onnx import Form, Uint8Network, cleaned_proto, rewrite, to_onnx
from export.compare_logits import double_classifier
from export.compiler.graph.inline_functions import without_functions
from export.compiler.pipeline import Rewritten
from export.compiler.proof.tolerances import relative_error
from export.sample_images import embedded_sample
from models.checkpoints.checkpoint import Checkpoint
from models.networks.config import BY_TOKEN, TRANSFORMER_NAMES, ModelConfig

NEVER_FOLD = [name for name in BY_TOKEN if name != "vit"]
FOLD = [name for name in TRANSFORMER_NAMES if name not in NEVER_FOLD]
SMALL = ModelConfig(depth=2, dim=16, heads=4, dim_head=16, mlp_dim=24)
SHALLOW = replace(SMALL, depth=1)  # two thirds of an export's time
FAMILIES = ("vit", "vitbnffn", "vitbn")  # rewritten, the other folding transformers equal vitbn
SMALLEST = {model: replace(SMALL if model in FAMILIES else SHALLOW, model=model) for model in TRANSFORMER_NAMES}
VARIANT = replace(SHALLOW, pool="mean", pos_emb="pe1d", bn_features="one", qkv_bias=True)


def network(config: ModelConfig, seed: int = 0) -> nn.Module:
    return random_networks.network(config, seed)


def checkpoint(config: ModelConfig) -> Checkpoint:
    return Checkpoint(Path("random.safetensors"), network(config), config, "0" * 64)


@cache
def plain_bytes(config: ModelConfig, seed: int, opset: int) -> bytes:
    return to_onnx(Uint8Network(network(config, seed)), config, opset).SerializeToString()


def plain(config: ModelConfig, seed: int = 0, opset: int = 20) -> onnx.ModelProto:
    return onnx.load_from_string(plain_bytes(config, seed, opset))


def rewritten(config: ModelConfig, form: Form, seed: int = 0) -> onnx.ModelProto:
    proto = plain(config, seed, form.opset)
    done = rewrite(proto, form)
    return cleaned_proto(proto, done) if done.steps else proto


def error(config: ModelConfig, done: Rewritten, seed: int = 0) -> float:
    """Of the rewritten graph beside the plain graph, in float64, relative to the largest logit."""
    images = embedded_sample(config).images[:3]
    before = double_classifier(without_functions(ir.from_proto(plain(config, seed))))(images)
    return relative_error(before, double_classifier(done.model)(images))


def answer(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model(x)


@st.composite
def geometries(draw: st.DrawFn) -> ModelConfig:
    patch = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    grid = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dim, classes = 2 * draw(st.integers(1, 12)), draw(st.integers(1, 12))
    model, pool = draw(st.sampled_from(TRANSFORMER_NAMES)), draw(st.sampled_from(["cls", "mean"]))
    late = st.tuples(st.integers(1, 5), st.sampled_from([1, 4, dim])) if pool == "cls" and model != "vit-dtn" else None
    return ModelConfig(
        model=model,
        image_size=(patch[0] * grid[0], patch[1] * grid[1]),
        patch_size=patch,
        channels=draw(st.integers(1, 3)),
        num_classes=classes,
        dim=dim,
        depth=draw(st.sampled_from([1, 1, 2])),
        heads=draw(st.integers(1, 4)),
        dim_head=draw(st.sampled_from([dim, 4, 9, 32])),
        mlp_dim=draw(st.integers(1, 40)),
        pool=pool,
        pos_emb=draw(st.sampled_from(["learn", "pe1d"])),
        bn_features=draw(st.sampled_from(["dim", "one"])),
        qkv_bias=draw(st.booleans()),
        standardise=draw(st.booleans()),
        labels=tuple(map(str, range(classes))),
        class_attention=None if late is None else draw(st.none() | late),
    )
