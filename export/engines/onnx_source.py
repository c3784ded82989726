"""The ONNX graph and manifest to build an engine from.

In: a file that `to_onnx.py` wrote, or an export. Out: an `OnnxSource`, or SourceError.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from export.errors import ExportError
from export.graph import Exported
from export.precision import Lowering, convert
from models.config import ConfigError, ModelConfig

# Plain text in the file's metadata; other fields are JSON.
TEXTS = ("checkpoint", "checkpoint_sha256", "torch", "precision")
NEEDED = ("model_config", "rewrites", "max_abs_error", "tolerance", "checkpoint_sha256", "metrics")


class SourceError(ExportError):
    pass


@dataclass(frozen=True)
class OnnxSource:
    data: bytes
    manifest: dict[str, Any]

    @property
    def config(self) -> ModelConfig:
        return ModelConfig.from_json(json.dumps(self.manifest["model_config"]))

    @property
    def precision(self) -> str:
        return str(self.manifest.get("precision", "fp32"))

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


def from_export(exported: Exported) -> OnnxSource:
    return OnnxSource(exported.onnx, dict(exported.artifact.about))


def read_source(path: Path) -> OnnxSource:
    try:
        data = path.read_bytes()
        proto = onnx.load_from_string(data)
    except OSError as error:
        raise SourceError(f"{path}: expected an ONNX file, found {error.strerror}") from error
    except DecodeError as error:
        raise SourceError(f"{path}: expected an ONNX file, found {error}") from error
    manifest = _from_metadata(proto)
    if missing := [key for key in NEEDED if key not in manifest]:
        raise SourceError(f"{path}: expected the metadata that to_onnx.py stores, found no {', '.join(missing)}")
    source = OnnxSource(data, manifest)
    try:
        _ = source.config
    except ConfigError as error:
        raise SourceError(f"{path}: {error}") from error
    return source


def in_precision(source: OnnxSource, precision: str, lowering: Callable[[], Lowering]) -> OnnxSource:
    """Raises AccuracyError or SourceError. Calls `lowering`, which loads the data, only to convert."""
    if source.precision == precision:
        return source
    if source.precision != "fp32":
        usable = "fp32" if precision == "fp32" else f"fp32 or {precision}"
        raise SourceError(f"ONNX: expected {usable} to build {precision} from, found {source.precision}")
    proto, converted = convert(onnx.load_from_string(source.data), lowering())
    added = {
        "precision": precision,
        "test_accuracy": converted.accuracy,
        "float32_test_accuracy": converted.reference,
    }
    for key, value in added.items():
        proto.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))
    return OnnxSource(proto.SerializeToString(), source.manifest | added)


def _from_metadata(proto: onnx.ModelProto) -> dict[str, Any]:
    entries = {entry.key: entry.value for entry in proto.metadata_props}
    if "model_config" not in entries:
        return {}
    known = {
        key: value for key, value in entries.items() if key in (*TEXTS, *NEEDED, "opset") or key.endswith("accuracy")
    }
    try:
        return {key: value if key in TEXTS else json.loads(value) for key, value in known.items()}
    except json.JSONDecodeError as error:
        raise SourceError(f"ONNX metadata: expected what to_onnx.py stores, found {error}") from error
