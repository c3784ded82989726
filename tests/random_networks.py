"""Untrained networks whose norms are far from the identity."""

import torch

from models.checkpoints.checkpoint import save
from models.networks.registry import build, randomise_norms
from models.networks.vit import plain_attention


def network(config, seed=0, attention=plain_attention):
    torch.manual_seed(seed)
    model = build(config, attention).eval()
    randomise_norms(model, seed)
    return model


def saved(path, config, metrics=None, seed=0):
    save(path, network(config, seed), config, metrics or {})
    return path
