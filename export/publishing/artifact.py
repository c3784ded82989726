"""A version: a file that Triton loads, and manifest.json with its origin.

In: bytes with their manifest, or the two files. Out: an `Artifact`; PublishError if file and manifest disagree.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.errors import ExportError
from models.config import ConfigError, ModelConfig

MANIFEST_FILE = "manifest.json"
ONNX_FILE = "model.onnx"
PLAN_FILE = "model.plan"
SAMPLE_FILE = "sample.npz"  # foreign models only: inputs and expected outputs


class PublishError(ExportError):
    pass


@dataclass(frozen=True)
class Artifact:
    config: ModelConfig
    manifest: dict[str, Any]
    file_name: str
    data: bytes

    def manifest_json(self) -> bytes:
        about = {"file": self.file_name, "sha256": hashlib.sha256(self.data).hexdigest()}
        return json.dumps(self.manifest | about, indent=2).encode()


def read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        check_manifest(path, manifest)
        if missing := sorted({"file", "sha256"} - manifest.keys()):
            raise KeyError(missing[0])
    except (OSError, ValueError, KeyError) as error:
        raise PublishError(f"{path}: expected the manifest of an export, found {error!r}") from error
    return manifest


def check_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Raises PublishError for a missing or wrong field that config.pbtxt, `list` or `verify` reads."""
    try:
        ModelConfig.from_json(json.dumps(manifest["model_config"]))
        if missing := sorted({"rewrites", "metrics", "checkpoint_sha256"} - manifest.keys()):
            raise KeyError(missing[0])
        _check_types(manifest)
        _check_numbers(manifest)
    except (ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
        raise PublishError(f"{path}: expected the manifest of an export, found {error!r}") from error


def accuracy_of(manifest: dict[str, Any]) -> float | None:
    """The file's test accuracy; the checkpoint's if the file was not measured."""
    accuracy: float | None = manifest.get("test_accuracy", manifest["metrics"].get("test_accuracy"))
    return accuracy


def _check_types(manifest: dict[str, Any]) -> None:
    for name, kind in (("file", str), ("checkpoint_sha256", str), ("engine", dict)):
        if not isinstance(manifest.get(name, kind()), kind):
            raise TypeError(f"{name} {manifest[name]!r}")
    for name, kinds in (("rewrites", (str,)), ("sample_logits", (int, float))):
        values = manifest.get(name, [])
        if not isinstance(values, list) or not all(isinstance(each, kinds) for each in values):
            raise TypeError(f"{name} {values!r}")


def _check_numbers(manifest: dict[str, Any]) -> None:
    accuracy, temperature = accuracy_of(manifest), manifest.get("temperature")
    for name in ("max_abs_error", "tolerance"):
        if not 0 <= manifest[name] < math.inf:  # NaN fails too
            raise ValueError(f"{name} {manifest[name]}")
    if accuracy is not None and not 0 <= accuracy <= 1:
        raise ValueError(f"test_accuracy {accuracy}")
    if temperature is not None and not 0 < temperature < math.inf:
        raise ValueError(f"temperature {temperature}")


def read_artifact(path: Path, manifest_path: Path) -> Artifact:
    manifest = read_manifest(manifest_path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PublishError(f"{path}: expected {manifest['file']}, found {error.strerror}") from error
    if (digest := hashlib.sha256(data).hexdigest()) != manifest["sha256"]:
        raise PublishError(f"{path}: expected the SHA-256 {manifest['sha256']}, found {digest}")
    config = ModelConfig.from_json(json.dumps(manifest["model_config"]))
    return Artifact(config, manifest, Path(manifest["file"]).name, data)


def read_version(folder: Path) -> Artifact:
    manifest_path = folder / MANIFEST_FILE
    return read_artifact(folder / Path(read_manifest(manifest_path)["file"]).name, manifest_path)
