"""State dicts of the published BatchNorm study.

In: names and tensors. Out: our configuration, and the tensors under our names, none transposed: both flatten a grey
patch row by row and order query-key-value rows q, k, v, each head-major.
Source: github.com/anindyahepth/BatchNorm_in_Transformers_CV.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from torch import Tensor

from models.checkpoints.tensor_check import WrongFile, shown
from models.networks.config import ModelConfig, ModelName

DIM_HEAD = 64  # of all published files; not visible in the shapes
CNN_LAYERS = ("conv1", "norm1", "conv2", "norm2", "conv3", "norm3", "fc1", "normfc", "fc2")

# Tensors whose shapes give the widths -> their dimensions.
MATRICES = {
    "patch_embedding.weight": 2,
    "embedding.pos_embedding": 3,
    "blocks.0.attention.qkv.weight": 2,
    "blocks.0.ffn.linear1.weight": 2,
    "head.weight": 2,
}

# Their name -> ours; `BN.` is the BatchNorm inside their wrapper.
RENAMES = (
    (r"cls_token", r"embedding.cls_token"),
    (r"pos_embedding(_random)?", r"embedding.pos_embedding"),
    (r"to_patch_embedding\.1\.(BN\.)?(.*)", r"patch_norm.\1\2"),
    (r"to_patch_embedding\.2\.(.*)", r"patch_embedding.\1"),
    (r"to_patch_embedding\.3\.(BN\.)?(.*)", r"embedding_norm.\1\2"),
    (r"transformer\.norm\.(.*)", r"norm.\1"),
    (r"transformer\.layers\.(\d{1,9})\.0\.norm\.(.*)", r"blocks.\1.attention.norm.\2"),
    (r"transformer\.layers\.(\d{1,9})\.0\.(?:to_qkv|patch_emb)\.(.*)", r"blocks.\1.attention.qkv.\2"),
    (r"transformer\.layers\.(\d{1,9})\.0\.(?:to_out|out_proj)\.0\.(.*)", r"blocks.\1.attention.out.\2"),
    (r"transformer\.layers\.(\d{1,9})\.1\.net\.0\.(.*)", r"blocks.\1.ffn.norm.\2"),
    (r"transformer\.layers\.(\d{1,9})\.1\.(?:net\.1|Lin1)\.(.*)", r"blocks.\1.ffn.linear1.\2"),
    (r"transformer\.layers\.(\d{1,9})\.1\.(?:norm\.BN|BN)\.(.*)", r"blocks.\1.ffn.hidden_norm.norm.\2"),
    (r"transformer\.layers\.(\d{1,9})\.1\.(?:net\.4|Lin2)\.(.*)", r"blocks.\1.ffn.linear2.\2"),
    (r"(?:mlp_head|linear_head)\.(.*)", r"head.\1"),
)


def from_reference(state: Mapping[str, Tensor]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Raises WrongFile for other names or shapes, and ConfigError."""
    try:
        if set(CNN_LAYERS) == {name.split(".")[0] for name in state}:
            _check_dimensions(state, {"conv1.weight": 4})
            return ModelConfig(model="cnn", channels=state["conv1.weight"].shape[1]), dict(state)
        tensors = {_rename(name): tensor for name, tensor in state.items()}
        return _config(tensors), tensors
    except KeyError as error:
        raise WrongFile(f"expected a published ViT, ViTBNFFN, ViTBN or CNN, found no tensor {error}") from error


def _check_dimensions(tensors: Mapping[str, Tensor], expected: Mapping[str, int]) -> None:
    for name, dimensions in expected.items():
        if tensors[name].ndim != dimensions or 0 in tensors[name].shape:
            shape = tuple(tensors[name].shape)
            raise WrongFile(f"tensor {name}: expected {dimensions} dimensions, none of size 0, found {shape}")


def _rename(name: str) -> str:
    for pattern, replacement in RENAMES:
        renamed, count = re.subn(f"^{pattern}$", replacement, name)
        if count:
            return renamed.replace("BN.", "norm.")
    raise WrongFile(f"tensor {shown(name)}: expected a name of a published ViT, ViTBNFFN, ViTBN or CNN, found none")


def _config(tensors: Mapping[str, Tensor]) -> ModelConfig:
    model: ModelName = "vit" if "blocks.0.ffn.norm.weight" in tensors else "vitbnffn"
    if "norm.norm.weight" in tensors:
        model = "vitbn"
    _check_dimensions(tensors, MATRICES)
    dim, patch_dim = tensors["patch_embedding.weight"].shape
    tokens = tensors["embedding.pos_embedding"].shape[1]
    patch, side = math.isqrt(patch_dim), math.isqrt(tokens - 1)
    if patch**2 != patch_dim or side**2 != tokens - 1:
        raise WrongFile(f"expected square grey patches and images, found {tokens - 1} patches of {patch_dim}")
    blocks = {int(name.split(".")[1]) for name in tensors if name.startswith("blocks.")}
    if max(blocks) >= len(blocks):
        raise WrongFile(f"expected blocks 0 to {len(blocks) - 1}, found block {max(blocks)}")
    hidden_norm = tensors.get("blocks.0.ffn.hidden_norm.norm.weight")
    labels = tuple(map(str, range(tensors["head.weight"].shape[0])))
    return ModelConfig(
        model=model,
        image_size=(side * patch, side * patch),
        patch_size=(patch, patch),
        channels=1,
        num_classes=len(labels),
        dim=dim,
        depth=len(blocks),
        heads=tensors["blocks.0.attention.qkv.weight"].shape[0] // (3 * DIM_HEAD),
        dim_head=DIM_HEAD,
        mlp_dim=tensors["blocks.0.ffn.linear1.weight"].shape[0],
        bn_features="one" if hidden_norm is not None and hidden_norm.numel() == 1 else "dim",
        qkv_bias="blocks.0.attention.qkv.bias" in tensors,
        labels=labels,
    )
