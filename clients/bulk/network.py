"""Runs a published classifier in this process, by ONNX Runtime on a single core.

In: a model's folder (its served version), the folder of a version, or an ONNX file of the exporter, and uint8 pixels.
Out: the index of the most probable label and its probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.errors import ModelMismatch, ModelNotFound
from clients.model_description import describe
from clients.prediction import top_probabilities
from common.files import regular, sha256
from common.preprocessing_settings import INPUT_NAME, OUTPUT_NAME
from common.repository import (
    CONFIG_FILE,
    MANIFEST_FILE,
    Damaged,
    read_config,
    read_version_files,
    served_versions,
    versions,
)

BATCH_SIZE = 256  # larger batches do not fit the cache of a CPU
BATCH_LEVELS = 1 << 22  # most pixel values of a batch: the activations of large pictures fill memory


@dataclass(frozen=True)
class ModelFile:
    """An ONNX file, with the name and the version that the answers state."""

    path: str
    name: str
    version: str
    sha256: str


def find_model(path: Path) -> ModelFile:
    """The file of a model's served version, of a version's folder, or `path` itself.

    A file outside a repository has the start of its SHA-256 as the version.
    Raises ModelNotFound, and ModelMismatch for a version whose file has changed since publishing.
    """
    if path.is_file():
        digest = _digest(path)
        return ModelFile(str(path.resolve()), path.stem, digest[:12], digest)
    folder = path if (path / MANIFEST_FILE).is_file() else path / str(_served_version(path))
    try:
        listed = read_version_files(folder)
    except Damaged as error:
        raise ModelNotFound(f"{folder}: expected a published version with its manifest, found {error.found}") from error
    file, expected = folder / listed.file, listed.files[listed.file]
    if (digest := _digest(file)) != expected:
        raise ModelMismatch(f"{file}: expected the SHA-256 {expected}, found {digest}")
    return ModelFile(str(file.resolve()), folder.resolve().parent.name, folder.name, digest)


def _digest(path: Path) -> str:
    try:
        return sha256(regular(path))
    except OSError as error:
        raise ModelNotFound(f"{path}: expected a model, found {error.strerror}") from error


def _served_version(folder: Path) -> int:
    """The highest version that config.pbtxt serves. Raises ModelNotFound."""
    try:
        served = served_versions(read_config(folder / CONFIG_FILE), versions(folder))
    except Damaged as error:
        raise ModelNotFound(
            f"{folder}: expected an ONNX file, a model's folder or a version's, found {error.found}"
        ) from error
    if not served:
        raise ModelNotFound(f"{folder}: expected a version, found none")
    return max(served)


class Network:
    """A model in memory, with its description.

    Raises ModelMismatch for a file of another SHA-256 and for another kind of model.
    """

    def __init__(self, model: ModelFile) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_mem_pattern = False  # it would keep a copy of all activations for every batch size
        data = Path(model.path).read_bytes()
        if (digest := sha256(data)) != model.sha256:
            raise ModelMismatch(f"{model.path}: expected the SHA-256 {model.sha256}, found {digest}")
        self.model = model
        try:
            self._session = ort.InferenceSession(data, options, ["CPUExecutionProvider"])
            self.description = describe(self._session.get_modelmeta().custom_metadata_map)
        except Exception as error:  # ONNX Runtime's errors have no common base class
            reason = " ".join(str(error).split())
            raise ModelMismatch(f"{model.path}: expected a classifier of the exporter, found {reason}") from error
        tensors = {tensor.name: tensor.type for tensor in (*self._session.get_inputs(), *self._session.get_outputs())}
        if tensors != (expected := {INPUT_NAME: "tensor(uint8)", OUTPUT_NAME: "tensor(float)"}):
            raise ModelMismatch(f"{model.path}: expected the tensors {expected}, found {tensors}")

    def classify(self, pixels: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """uint8 (n, C, H, W) -> the index of the most probable label (n,), and its probability (n,)."""
        logits = self.logits(pixels)
        return logits.argmax(axis=1), top_probabilities(logits, self.description.temperature)

    def logits(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """uint8 (n, C, H, W) -> float32 logits (n, classes)."""
        logits = np.empty((len(pixels), len(self.description.labels)), np.float32)
        size = min(BATCH_SIZE, max(1, BATCH_LEVELS // prod(self.description.image_shape)))
        for start in range(0, len(pixels), size):
            batch = pixels[start : start + size]
            logits[start : start + len(batch)] = self._session.run([OUTPUT_NAME], {INPUT_NAME: batch})[0]
        return logits
