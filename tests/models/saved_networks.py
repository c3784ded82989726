import pytest
import torch
from safetensors.torch import save_file

from models.checkpoints.checkpoint import CheckpointError, load
from models.networks.config import ModelConfig

TINY = ModelConfig(image_size=(8, 8), patch_size=(4, 4), dim=16, depth=3, heads=2, dim_head=8, mlp_dim=24)
PUBLISHED_SHAPE = ModelConfig(depth=2, dim=32, heads=2, dim_head=64, mlp_dim=48)  # 64 a head, as all published
# Our names -> the study's; in blocks without the prefix.
VIT_NAMES = {
    "embedding.cls_token": "cls_token",
    "embedding.pos_embedding": "pos_embedding",
    "patch_norm.": "to_patch_embedding.1.",
    "patch_embedding.": "to_patch_embedding.2.",
    "embedding_norm.": "to_patch_embedding.3.",
    "attention.norm.": "0.norm.",
    "attention.qkv.": "0.to_qkv.",
    "attention.out.": "0.to_out.0.",
    "ffn.norm.": "1.net.0.",
    "ffn.linear1.": "1.net.1.",
    "ffn.linear2.": "1.net.4.",
    "norm.": "transformer.norm.",
    "head.": "mlp_head.",
}
VITBNFFN_NAMES = VIT_NAMES | {
    "embedding.pos_embedding": "pos_embedding_random",
    "attention.qkv.": "0.patch_emb.",
    "attention.out.": "0.out_proj.0.",
    "ffn.linear1.": "1.Lin1.",
    "ffn.hidden_norm.norm.": "1.BN.",
    "ffn.linear2.": "1.Lin2.",
    "head.": "linear_head.",
}
VITBN_NAMES = VITBNFFN_NAMES | {
    "patch_norm.norm.": "to_patch_embedding.1.BN.",
    "embedding_norm.norm.": "to_patch_embedding.3.BN.",
    "attention.norm.norm.": "0.norm.BN.",
    "ffn.hidden_norm.norm.": "1.norm.BN.",
    "norm.norm.": "transformer.norm.BN.",
}
NAMES = {"vit": VIT_NAMES, "vitbnffn": VITBNFFN_NAMES, "vitbn": VITBN_NAMES, "cnn": {"": ""}}


def published_name(name, names):
    block = ""
    if name.startswith("blocks."):
        _, number, name = name.split(".", 2)
        block = f"transformer.layers.{number}."
    ours = max((prefix for prefix in names if name.startswith(prefix)), key=len)
    return block + names[ours] + name.removeprefix(ours)


def published(model, names):
    return {published_name(name, names): tensor for name, tensor in model.state_dict().items()}


def image_batch(config):
    return torch.rand(4, *config.input_shape, generator=torch.Generator().manual_seed(1))


def refusal(path, depth=None):
    with pytest.raises(CheckpointError) as refused:
        load(path, depth)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def write(path, tensors, metadata=None):
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata)
    return path


def write_pth(path, state):
    torch.save(state, path)
    return path
