"""Replaces BatchNorm's statistics by those of unlabelled images of a new source; the weights stay.

In: a network and uint8 images (n, C, H, W), or a checkpoint and a folder of pictures. Out: a copy of the network with
the images' statistics. Li et al., "Revisiting Batch Normalization", 2016 (AdaBN).
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import Tensor, nn

from common.files import typed_command
from models.checkpoints import checkpoint
from models.checkpoints.metrics import Metrics, of_dataset
from models.data.folder import load_unlabelled
from models.networks.config import INPUT_SCALE
from models.networks.vit import LastBlock, VisionTransformer, row_attention

FEWEST, MOST = 50, 500  # pictures: fewer give poor statistics, more fill the memory


class AdaptationError(Exception):
    pass


def adapt_checkpoint(path: Path, folder: Path, output: Path) -> tuple[int, tuple[str, ...]]:
    """Writes the adapted checkpoint to `output` and returns the number of pictures and notes of what was left out.

    Drops accuracy and temperature: they belong to the old statistics. Raises AdaptationError, CheckpointError and
    DataError.
    """
    if output.resolve() == path.resolve():
        raise AdaptationError(f"{output}: expected another file than the checkpoint, found the same")
    if output.exists() and "adapted" not in checkpoint.load(output).metrics:
        raise AdaptationError(f"{output}: expected nothing or a checkpoint of vitbn adapt, found another checkpoint")
    source = checkpoint.load(path)
    pixels, notes = load_unlabelled(folder, source.config, FEWEST, MOST)
    images = torch.from_numpy(pixels)
    try:
        adapted = adapt(source.model, images, last_block=last_block_of_training(source.metrics))
    except AdaptationError as error:
        raise AdaptationError(f"{path}: {error}") from error
    metrics = of_dataset(source.metrics) | {
        "command": typed_command(),
        "adapted": {
            "checkpoint": path.name,
            "sha256": source.sha256,
            "training_command": source.metrics.get("command"),
            "last_block": last_block_of_training(source.metrics),
            "pictures": len(images),
        },
    }
    checkpoint.save(output, adapted, source.config, metrics)
    return len(images), notes


def last_block_of_training(metrics: Metrics) -> LastBlock:
    """Whether training computed all rows of the last block or the CLS row alone; all, if the metrics do not say."""
    described = metrics.get("options") or metrics.get("adapted") or {}
    return "row" if described.get("last_block") == "row" else "all"


def adapt(model: nn.Module, images: Tensor, last_block: LastBlock = "all") -> nn.Module:
    """A copy in eval mode with the statistics of `images`, uint8 (n, C, H, W).

    `last_block` row: the last block's BatchNorms get statistics of CLS rows, as in training. Raises AdaptationError for
    a network without BatchNorm.
    """
    adapted = copy.deepcopy(model).eval()
    if isinstance(adapted, VisionTransformer) and last_block == "row":
        adapted = VisionTransformer(adapted.config, row_attention)
        adapted.load_state_dict(model.state_dict())
        adapted.eval()
    norms = [module for module in adapted.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    if not norms:
        raise AdaptationError(f"expected a network with BatchNorm, found {type(model).__name__} without")
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0  # the batch's statistics alone
    with torch.no_grad():
        adapted(images * INPUT_SCALE)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return adapted.eval()
