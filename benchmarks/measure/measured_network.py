"""A network to measure, and the images that it is measured on.

In: a configuration, a shipped network, or a user's checkpoint with the name or folder of a dataset. Out: the network's
configuration, checkpoint and dataset.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from export.errors import Unavailable
from models.catalog import matching, shipped
from models.networks.config import ModelConfig

if TYPE_CHECKING:
    from export.checkpoint_to_onnx import Exported, Rewrites
    from export.compare_logits import Classifier, Images
    from models.data import Dataset

SCORED_BATCH = 250  # images a call while accuracies are measured


@dataclass(frozen=True)
class Network:
    """`name`: of the network in results and on a server. `weights`: a checkpoint, or a configuration.

    `on_dataset`: whether the network is measured on a dataset. Other networks are measured on digits or noise, which
    need no files. `dataset`: a name or a folder, by default the dataset of the network's training. `data_dir`: the
    folder of the dataset's files.
    """

    name: str
    weights: Path | ModelConfig
    on_dataset: bool = False
    dataset: str | None = None
    data_dir: Path | None = None

    @property
    def path(self) -> Path:
        """The network's checkpoint. For a configuration: the shipped checkpoint; raises Unavailable without it."""
        path = matching(self.weights) if isinstance(self.weights, ModelConfig) else self.weights
        if path is None:
            raise Unavailable(f"{self.name}: expected the configuration of a shipped network, found another")
        return path

    @property
    def config(self) -> ModelConfig:
        """Raises CheckpointError."""
        return self.weights if isinstance(self.weights, ModelConfig) else _config(self.weights)

    @property
    def data(self) -> Dataset:
        """Raises CheckpointError, and DataError if the dataset is missing or does not fit the network."""
        from models.data import load_digits

        return _dataset(self) if self.on_dataset else load_digits()

    @property
    def data_folder(self) -> Path | None:
        """The dataset's folder for the exporter; None if the user named no folder."""
        folder = Path(self.dataset) if self.dataset else None
        return self.data_dir or (folder if folder and folder.is_dir() else None)

    def examples(self, count: int) -> Images:
        """uint8 (count, C, H, W): test images of the dataset, else digits or noise, repeated if they are too few."""
        import numpy as np

        from export.sample_images import COUNT, embedded_sample

        images = self.data.test_images[:COUNT] if self.on_dataset else embedded_sample(self.config).images
        return np.resize(images, (count, *self.config.input_shape))


def shipped_network(name: str) -> Network:
    return Network(name, shipped(name))


def rewrite_checkpoint(checkpoint: Path, rewrites: Rewrites = "all") -> Exported:
    """The checkpoint as an ONNX file after the rewrites, compared with the network. Raises ExportError."""
    from export.checkpoint_to_onnx import Form
    from export.checkpoint_to_version import export_checkpoint

    return export_checkpoint(checkpoint, Form(rewrites))


def rewritten_classifier(checkpoint: Path) -> Classifier:
    """The checkpoint after all rewrites, in ONNX Runtime, which gets SCORED_BATCH images a call."""
    from export.compare_logits import in_parts, onnx_classifier

    return in_parts(onnx_classifier(rewrite_checkpoint(checkpoint).onnx), SCORED_BATCH)


@cache
def _config(path: Path) -> ModelConfig:
    from models.checkpoints.checkpoint import load

    return load(path).config


@cache
def _dataset(network: Network) -> Dataset:
    from export.sample_images import own_dataset
    from models.checkpoints.checkpoint import load

    checkpoint = load(network.path)
    metrics = checkpoint.metrics if network.dataset is None else {"dataset": network.dataset}
    return own_dataset(checkpoint.config, metrics, network.data_dir)
