"""BatchNorm's statistics from unlabelled images of a new source; the weights stay.

In: a network and uint8 images (n, C, H, W), or a checkpoint and a folder of pictures. Out: a copy with their
statistics. Li et al., "Revisiting Batch Normalization", 2016 (AdaBN).
"""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import Tensor, nn

from common.files import typed_command
from models import checkpoint
from models.config import INPUT_SCALE
from models.data.folder import load_unlabelled
from models.metrics import DATASET, Metrics
from models.vit import LastBlock, VisionTransformer, row_attention

FEWEST, MOST = 50, 500  # pictures: fewer give poor statistics, more fill the memory


class AdaptationError(Exception):
    pass


def adapt_checkpoint(path: Path, folder: Path, output: Path) -> int:
    """Returns the number of pictures; drops accuracy and temperature, which belong to the old statistics.

    Raises AdaptationError, CheckpointError and DataError.
    """
    if output.resolve() == path.resolve():
        raise AdaptationError(f"{output}: expected another file than the checkpoint, found the same")
    source = checkpoint.load(path)
    images = torch.from_numpy(load_unlabelled(folder, source.config, FEWEST, MOST))
    try:
        adapted = adapt(source.model, images, last_block=last_block_of_training(source.metrics))
    except AdaptationError as error:
        raise AdaptationError(f"{path}: {error}") from error
    metrics = {name: source.metrics[name] for name in DATASET if name in source.metrics}
    metrics |= {
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
    return len(images)


def last_block_of_training(metrics: Metrics) -> LastBlock:
    described = metrics.get("options") or metrics.get("adapted") or {}
    return "row" if described.get("last_block") == "row" else "all"


def adapt(model: nn.Module, images: Tensor, last_block: LastBlock = "all") -> nn.Module:
    """A copy in eval mode. If training computed one row of the last block, its BatchNorms get statistics of CLS rows.

    Raises AdaptationError.
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
