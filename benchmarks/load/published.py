"""Shipped networks on the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.load.terms import Failed, Sharing
from models.catalog import shipped

if TYPE_CHECKING:
    from clients.classifier import Classifier
    from export.equivalence import Images, Logits
    from models.config import ModelConfig

TOLERANCE = 1e-4  # of a logit; the server batches differently


@dataclass(frozen=True)
class Published:
    """An ONNX file on the server, and its network's configuration."""

    data: bytes
    config: ModelConfig


def publish(model: str, repository: Path, names: Mapping[str, Sharing | None]) -> Published:
    """Exports the shipped `model` with all rewrites; publishes it under each name, with its sharing."""
    from export.pipeline import ExportOptions, export_checkpoint
    from export.publishing.publish import publish as publish_artifact
    from export.publishing.triton_config import Serving

    exported = export_checkpoint(shipped(model), ExportOptions(optimize=True))
    for name, sharing in names.items():
        serving = [Serving(instances=sharing.instances, threads=sharing.threads)] if sharing else []
        publish_artifact(repository, name, exported.artifact, *serving)
    return Published(exported.onnx, exported.artifact.config)


def check(who: object, classifier: Classifier, images: Images, expected: Logits) -> None:
    """Raises Failed if the server's logits differ from the same file's in this process."""
    import numpy as np

    error = float(np.abs(classifier.logits(images) - expected).max())
    if not error <= TOLERANCE:
        raise Failed(f"{who}: expected logits within {TOLERANCE:.0e} of those in process, found {error:.1e}")
