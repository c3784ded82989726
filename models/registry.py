"""Configuration -> network, and randomised norms for tests and proofs."""

from __future__ import annotations

import torch
from torch import nn

from models.cnn import CNN
from models.config import ModelConfig
from models.dnn import DNN
from models.norms import TokenNorm
from models.vit import LastBlock, VisionTransformer

Network = VisionTransformer | CNN | DNN


def build(config: ModelConfig, last_block: LastBlock = "all") -> Network:
    if config.is_transformer:
        return VisionTransformer(config, last_block)
    return CNN(config) if config.model == "cnn" else DNN(config)


def randomise_norms(model: nn.Module, seed: int = 0) -> None:
    """Fresh norms are almost the identity and hide wrong folds."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.LayerNorm | nn.BatchNorm1d | nn.BatchNorm2d) and module.weight is not None:
                module.weight.uniform_(0.5, 1.5, generator=generator)
                module.bias.uniform_(-0.5, 0.5, generator=generator)
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.get_buffer("running_mean").uniform_(-1, 1, generator=generator)
                module.get_buffer("running_var").uniform_(0.5, 2, generator=generator)
                module.get_buffer("num_batches_tracked").fill_(1)
            if isinstance(module, TokenNorm):
                module.randomise(generator)
