"""Checks that a version keeps the contract of its model: what clients read once and rely on for every version.

In: config.pbtxt and labels.txt of a published model, and the manifest of a version. Out: nothing; or PublishError.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.files import reason
from common.printable import printable
from common.repository import LABELS_FILE, ONNX_FILE, PLAN_FILE, read_labels
from export.errors import PublishError
from export.publishing.manifest import Manifest
from export.publishing.new_config import engine_of, image_shape, new_config
from export.publishing.picture_config import PictureConfig
from models.networks.config import ModelConfig

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb


def check_same_contract(model_dir: Path, message: pb.ModelConfig, manifest: Manifest) -> None:
    """Raises PublishError unless a version with this manifest has its model's tensors, or for a network of pictures its
    classes and image shape, and the model's kind of file.
    """
    if manifest.config is None:
        _check_same_tensors(model_dir, message, manifest)
    else:
        _check_same_classes(model_dir, message, manifest.config)
    check_kind(model_dir, engine_of(message), manifest)


def _check_same_tensors(model_dir: Path, config: pb.ModelConfig, manifest: Manifest) -> None:
    if "model_config" in config.parameters:
        raise PublishError(f"{model_dir}: expected a foreign model, found exports")
    message = new_config(config.name, manifest, engine_of(config))
    for kind in ("input", "output"):
        old, new = ([(t.name, t.data_type, _shape(t)) for t in getattr(model, kind)] for model in (config, message))
        if old != new:
            raise PublishError(f"{model_dir}: expected the {kind}s {old}, found {new}")
    if bool(config.max_batch_size) != bool(message.max_batch_size):
        sizes = f"expected max_batch_size {config.max_batch_size}, found {message.max_batch_size}"
        raise PublishError(f"{model_dir}: {sizes}")


def _shape(tensor: pb.ModelInput | pb.ModelOutput) -> list[int]:
    """The shape that the file has; `dims` is the shape that clients see."""
    return [*(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)]


def _check_same_classes(model_dir: Path, message: pb.ModelConfig, config: ModelConfig | PictureConfig) -> None:
    path = model_dir / LABELS_FILE
    try:
        labels = read_labels(model_dir)
    except (OSError, UnicodeDecodeError) as error:
        raise PublishError(f"{path}: expected the classes of a published model, found {reason(error)}") from error
    if (shape := image_shape(message)) != config.input_shape:
        raise PublishError(
            f"{model_dir}: expected a model for {config.input_shape} images and classes {_shown(config.labels)}, "
            f"found {shape} and {_shown(labels)}"
        )
    if labels != config.labels:
        raise PublishError(f"{path}: expected the classes {_shown(config.labels)}, found {_shown(labels)}")


def _shown(labels: Sequence[str]) -> str:
    """The labels for an error message, without control characters."""
    return printable(", ".join(labels))


def check_kind(model_dir: Path, engine: str, manifest: Manifest) -> None:
    """Raises PublishError unless the version's file is of the kind that `engine` loads: a plan or an ONNX file."""
    expected = PLAN_FILE if engine == "tensorrt" else ONNX_FILE
    if manifest.file != expected:
        raise PublishError(f"{model_dir}: expected a {expected}, found a {manifest.file}")
