"""A checkpoint of the user's to measure, and the images that it is measured on.

In: the file, and a dataset's name or folder, by default those of its training. Out: its configuration and the dataset.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from models.data import Dataset
    from models.networks.config import ModelConfig


@dataclass(frozen=True)
class Own:
    """`dataset`: a name or a folder; None stands for that of the training. `data_dir`: the folder of its files."""

    path: Path
    dataset: str | None = None
    data_dir: Path | None = None

    @property
    def name(self) -> str:
        """The network's name in results and on a server."""
        return self.path.stem

    @property
    def config(self) -> ModelConfig:
        """Raises CheckpointError."""
        return _config(self.path)

    @property
    def data(self) -> Dataset:
        """Raises CheckpointError, and DataError if the dataset is missing or does not fit the network."""
        return _data(self)

    @property
    def place(self) -> Path | None:
        """The dataset's folder for the exporter; None if the user named no folder."""
        folder = Path(self.dataset) if self.dataset else None
        return self.data_dir or (folder if folder and folder.is_dir() else None)


@cache
def _config(path: Path) -> ModelConfig:
    from models.checkpoints.checkpoint import load

    return load(path).config


@cache
def _data(own: Own) -> Dataset:
    from export.images import own_dataset
    from models.checkpoints.checkpoint import load

    loaded = load(own.path)
    metrics = loaded.metrics if own.dataset is None else {"dataset": own.dataset}
    return own_dataset(loaded.config, metrics, own.data_dir)
