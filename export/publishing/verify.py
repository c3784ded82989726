"""Checks a published model: hashes, config, graph and answer. Changes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from export.publishing.artifact import MANIFEST_FILE, ONNX_FILE, SAMPLE_FILE, Artifact, PublishError, read_version
from export.publishing.foreign import is_foreign, verify_foreign
from export.publishing.publish import check_same_contract, read_config, versions
from export.publishing.triton_config import served_versions


@dataclass(frozen=True)
class Verified:
    """`left_out`: a check that this machine cannot make."""

    version: int
    problem: str | None = None
    left_out: str | None = None


def verify_model(model_dir: Path) -> Iterator[Verified]:
    message = read_config(model_dir)
    if message.name != model_dir.name:
        raise PublishError(f"{model_dir}: expected the name {model_dir.name} in config.pbtxt, found {message.name}")
    present = versions(model_dir)
    missing = set(message.version_policy.specific.versions) - set(present)
    if missing or not served_versions(message, present):
        named = f"version {min(missing)}" if missing else "any version"
        raise PublishError(f"{model_dir}: expected {named}, which config.pbtxt serves, found {present}")
    for number in present:
        yield verify_version(model_dir, number)


def verify_version(model_dir: Path, number: int) -> Verified:
    folder = model_dir / str(number)
    if (folder / SAMPLE_FILE).exists() and is_foreign(folder / MANIFEST_FILE):
        return Verified(number, problem=verify_foreign(folder))
    try:
        artifact = read_version(folder)
        check_same_contract(model_dir, read_config(model_dir), artifact)
        if artifact.file_name != ONNX_FILE:
            return Verified(number, left_out=f"no answer asked of {artifact.file_name}, which only its own GPU runs")
        check_answer(folder / artifact.file_name, artifact)
    except PublishError as error:
        return Verified(number, problem=str(error))
    return Verified(number)


def check_answer(path: Path, artifact: Artifact) -> None:
    """Raises PublishError for an invalid file or another answer than at the export; below float32, another class."""
    import onnx

    from export.equivalence import onnx_classifier, proof_images

    manifest = artifact.manifest
    try:
        onnx.checker.check_model(onnx.load_from_string(artifact.data), full_check=True)
        logits = onnx_classifier(artifact.data)(proof_images(artifact.config)[:1])
    except Exception as failure:  # protobuf, ONNX and ONNX Runtime share no base class
        reason = " ".join(str(failure).split())
        raise PublishError(f"{path}: expected a valid ONNX graph that runs, found {reason}") from failure
    expected = np.array([manifest.get("sample_logits", [])], np.float32)
    if logits.shape != expected.shape:
        raise PublishError(f"{path}: expected logits {expected.shape} of the sample, found {logits.shape}")
    error, tolerance = float(np.abs(logits - expected).max()), manifest["tolerance"]
    if not math.isfinite(error):  # argmax finds a class even in NaN
        raise PublishError(f"{path}: expected finite logits of the sample, found an error of {error}")
    if manifest.get("precision", "fp32") == "fp32" and not error <= tolerance:
        raise PublishError(f"{path}: expected the sample's logits to {tolerance:.2e}, found an error of {error:.2e}")
    if logits.argmax() != expected.argmax():
        raise PublishError(f"{path}: expected class {expected.argmax()} for the sample, found {logits.argmax()}")
