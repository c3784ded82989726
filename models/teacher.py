"""A trained network as teacher (distillation: Hinton et al., 2015). In: its checkpoint. Out: targets."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from models import checkpoint
from models.config import ModelConfig
from models.train import TrainingError


def load_teacher(path: Path, config: ModelConfig) -> checkpoint.Checkpoint:
    try:
        teacher = checkpoint.load(path)
    except checkpoint.CheckpointError as error:
        raise TrainingError(f"teacher {error}") from error
    for name in ("channels", "image_size", "num_classes"):
        if (expected := getattr(config, name)) != (found := getattr(teacher.config, name)):
            raise TrainingError(f"teacher {path}: expected {name} {expected}, found {found}")
    for parameter in teacher.model.parameters():
        if parameter.ndim == 4:  # halves the time of a convolution
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return teacher


def targets(probabilities: Tensor, labels: Tensor) -> Tensor:
    """(B, num_classes): means of labels (B,) and probabilities (B, num_classes)."""
    return (F.one_hot(labels, probabilities.shape[1]) + probabilities) / 2
