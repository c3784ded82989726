"""A network to measure: its weights, and the images that it is measured on.

In: a configuration, a shipped network, or a checkpoint of the user's with a dataset's name or folder. Out: its
configuration, its checkpoint and its dataset.
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
    from export.equivalence import Images
    from models.data import Dataset


@dataclass(frozen=True)
class Network:
    """`name`: in results and on a server. `weights`: a checkpoint, or a configuration.

    `own`: whether it is measured on its own dataset. Others are measured on digits or noise, which need no files.
    `dataset`: a name or a folder, by default the dataset of its training. `data_dir`: the folder of its files.
    """

    name: str
    weights: Path | ModelConfig
    own: bool = False
    dataset: str | None = None
    data_dir: Path | None = None

    @property
    def path(self) -> Path:
        """Its checkpoint, for a configuration the shipped one. Raises Unavailable if none is shipped."""
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
        """Raises CheckpointError, and DataError if the own dataset is missing or does not fit the network."""
        from models.data import load_digits

        return _data(self) if self.own else load_digits()

    @property
    def place(self) -> Path | None:
        """The dataset's folder for the exporter; None if the user named no folder."""
        folder = Path(self.dataset) if self.dataset else None
        return self.data_dir or (folder if folder and folder.is_dir() else None)

    def examples(self, count: int) -> Images:
        """uint8 (count, C, H, W), repeated: test images of its own dataset, else digits or noise."""
        import numpy as np

        from export.sample_images import COUNT, embedded_sample

        images = self.data.test_images[:COUNT] if self.own else embedded_sample(self.config).images
        return np.resize(images, (count, *self.config.input_shape))


def shipped_network(name: str) -> Network:
    return Network(name, shipped(name))


@cache
def _config(path: Path) -> ModelConfig:
    from models.checkpoints.checkpoint import load

    return load(path).config


@cache
def _data(network: Network) -> Dataset:
    from export.sample_images import own_dataset
    from models.checkpoints.checkpoint import load

    loaded = load(network.path)
    metrics = loaded.metrics if network.dataset is None else {"dataset": network.dataset}
    return own_dataset(loaded.config, metrics, network.data_dir)
