"""Distils a trained network, the teacher (Hinton et al., 2015), and caches the epochs that it has labelled.

In: the teacher's checkpoint, training images uint8 (n, C, H, W) and a distortion. Out: targets, and a file per epoch
with distorted images uint8 (n, C, H, W) and the teacher's probabilities float16 (n, num_classes). Teacher and
distortions take longer than a small student; with a cache only the first training pays for them (Faghri et al.,
"Reinforce Data, Multiply Impact", 2023). Trainings with one cache see the same distorted images, in different orders.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialise
from torch import Tensor, nn

from common.files import reason, sha256, write_atomically
from models.checkpoints import checkpoint
from models.data import Dataset
from models.data.outlier_exposure import NO_CLASS
from models.evaluation.accuracy_and_calibration import TEST_BATCH
from models.networks.config import INPUT_SCALE, ModelConfig
from models.networks.registry import channels_last
from models.training.augmentation import augmentation
from models.training.mixing import as_probabilities
from models.training.recipe import TrainingError, TrainingOptions


def load_teacher(path: Path, config: ModelConfig) -> checkpoint.Checkpoint:
    """Raises TrainingError if the teacher reads other images than `config`, or has other classes."""
    try:
        teacher = checkpoint.load(path)
    except checkpoint.CheckpointError as error:
        raise TrainingError(f"teacher {error}") from error
    for name in ("channels", "image_size", "num_classes"):
        if (expected := getattr(config, name)) != (found := getattr(teacher.config, name)):
            raise TrainingError(f"teacher {path}: expected {name} {expected}, found {found}")
    for number, (ours, theirs) in enumerate(zip(config.labels, teacher.config.labels, strict=True)):
        if ours != theirs:
            raise TrainingError(f"teacher {path}: expected {ours!r} as class {number}, found {theirs!r}")
    channels_last(teacher.model)
    return teacher


def targets(probabilities: Tensor, labels: Tensor) -> Tensor:
    """The mean of the labels and the teacher's probabilities (B, num_classes): (B, num_classes).

    Labels are int64 (B,), or of mixed pictures probabilities (B, num_classes). An image of NO_CLASS keeps its label:
    the teacher knows only classes.
    """
    one_hot = as_probabilities(labels, probabilities.shape[1])
    mean = (one_hot + probabilities) / 2
    return mean if labels.is_floating_point() else mean.where(labels[:, None] != NO_CLASS, one_hot)


@dataclass(frozen=True)
class TeacherCache:
    """`images`: uint8 (n, C, H, W) on the device. `distort`: float images -> the same shape. `classes`: a number."""

    folder: Path
    images: Tensor
    distort: Callable[[Tensor], Tensor]
    teacher: nn.Module
    classes: int

    def epoch(self, number: int) -> tuple[Tensor, Tensor]:
        """Images uint8 (n, C, H, W) and probabilities float32 (n, classes). Raises TrainingError for a damaged file."""
        path = self.folder / f"epoch-{number:04d}.safetensors"
        if not path.exists():
            write_atomically(path, serialise(self._compute(number)))
        return self._read(path)

    @torch.no_grad()
    def _compute(self, number: int) -> dict[str, Tensor]:
        images, probabilities = [], []
        with torch.random.fork_rng():
            torch.manual_seed(number)
            for batch in self.images.split(TEST_BATCH):
                images.append((self.distort(batch * INPUT_SCALE) / INPUT_SCALE).round().byte())
                probabilities.append(self.teacher(images[-1] * INPUT_SCALE).softmax(1).half())
        return {"images": torch.cat(images).cpu(), "probabilities": torch.cat(probabilities).cpu()}

    def _read(self, path: Path) -> tuple[Tensor, Tensor]:
        try:
            stored = load_file(path, device=str(self.images.device))
        except (SafetensorError, OSError) as error:
            raise TrainingError(f"{path}: expected an epoch of images, found {reason(error)}") from error
        found = {name: (str(tensor.dtype), tuple(tensor.shape)) for name, tensor in stored.items()}
        expected = {
            "images": ("torch.uint8", tuple(self.images.shape)),
            "probabilities": ("torch.float16", (len(self.images), self.classes)),
        }
        if found != expected:
            raise TrainingError(f"{path}: expected {expected}, found {found}")
        return stored["images"], stored["probabilities"].float()


def open_cache(
    folder: Path, part: Dataset, images: Tensor, config: ModelConfig, options: TrainingOptions
) -> TeacherCache:
    """`images`: those of `part`, on the device. Raises TrainingError if `folder` belongs to another training."""
    if options.teacher is None:
        raise TrainingError(f"teacher cache {folder}: expected a teacher, found none")
    teacher = load_teacher(Path(options.teacher), config)
    expected = {
        "dataset": part.name,
        "hold_out": options.hold_out,
        "images_sha256": sha256(part.train_images.tobytes()),
        "augment": options.augment,
        "teacher_sha256": teacher.sha256,
    }
    path = folder / "origin.json"
    if not path.exists():
        write_atomically(path, json.dumps(expected, indent=2).encode())
    origin = _read_origin(path)
    for name, value in expected.items():
        if origin.get(name) != value:
            raise TrainingError(f"{path}: expected {name} {value}, found {origin.get(name)}")
    model = teacher.model.to(options.device)
    return TeacherCache(folder, images, augmentation(options.augment), model, config.num_classes)


def _read_origin(path: Path) -> dict[str, object]:
    try:
        origin = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path}: expected a JSON object, found {reason(error)}") from error
    if not isinstance(origin, dict):
        raise TrainingError(f"{path}: expected a JSON object, found {type(origin).__name__}")
    return origin
