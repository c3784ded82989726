"""What a version consists of: a file that Triton loads and, beside it, manifest.json, which says where it came from.

In: bytes and what is known of them, or the two files. Out: an `Artifact`; never one that its manifest does not fit.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.errors import ExportError
from models.config import ConfigError, ModelConfig

MANIFEST_FILE = "manifest.json"
ONNX_FILE = "model.onnx"
PLAN_FILE = "model.plan"


class PublishError(ExportError):
    """A repository that is not as it should be; the message names the path, what was expected and what was found."""


@dataclass(frozen=True)
class Artifact:
    """What a version consists of: a file, by the name that Triton looks for, and what is known of it.

    The manifest gains the file's name and hash.
    """

    config: ModelConfig
    manifest: dict[str, Any]
    file_name: str
    data: bytes

    def manifest_json(self) -> bytes:
        """The bytes of manifest.json."""
        about = {"file": self.file_name, "sha256": hashlib.sha256(self.data).hexdigest()}
        return json.dumps(self.manifest | about, indent=2).encode()


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest in the file `path`, with all that is read from one; raises PublishError where it is none."""
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        ModelConfig.from_json(json.dumps(manifest["model_config"]))
        if missing := sorted({"file", "sha256", "rewrites", "max_abs_error", "metrics"} - manifest.keys()):
            raise KeyError(missing[0])
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        raise PublishError(f"{path}: expected the manifest of an export, found {error!r}") from error
    return manifest


def read_artifact(path: Path, manifest_path: Path) -> Artifact:
    """The artifact in the file `path`; raises PublishError where it is not what its manifest says."""
    manifest = read_manifest(manifest_path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PublishError(f"{path}: expected {manifest['file']}, found {error.strerror}") from error
    if (found := hashlib.sha256(data).hexdigest()) != manifest["sha256"]:
        raise PublishError(f"{path}: expected the SHA-256 {manifest['sha256']}, found {found}")
    config = ModelConfig.from_json(json.dumps(manifest["model_config"]))
    return Artifact(config, manifest, Path(manifest["file"]).name, data)


def read_version(folder: Path) -> Artifact:
    """The artifact that was published as the version in `folder`; raises PublishError where it has changed since."""
    manifest_path = folder / MANIFEST_FILE
    return read_artifact(folder / Path(read_manifest(manifest_path)["file"]).name, manifest_path)
