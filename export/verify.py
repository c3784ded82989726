"""Is a published model what it was when it was published? Its hashes, its config, its graph, its answer.

In: a model's folder. Out: for every version what is wrong with it, if anything is. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from export.artifact import ONNX_FILE, Artifact, PublishError, read_version
from export.publish import check_same_contract, read_config, versions
from export.triton_config import served_versions


@dataclass(frozen=True)
class Verified:
    """One version; `problem` is the first thing that is wrong, `left_out` what could not be looked at here."""

    version: int
    problem: str | None = None
    left_out: str | None = None


def verify_model(model_dir: Path) -> Iterator[Verified]:
    """Checks every version of a model; raises PublishError where the model as a whole is not servable."""
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
    """Checks one version: what it holds is what was published, fits config.pbtxt and answers as it did then."""
    folder = model_dir / str(number)
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
    """Raises PublishError where the ONNX file is not valid, or answers the sample otherwise than at its export.

    The logits may differ by the tolerance of the export; below float32, where processors differ, only the class counts.
    """
    import onnx

    from export.equivalence import onnx_classifier, proof_images

    manifest = artifact.manifest
    try:
        onnx.checker.check_model(onnx.load_from_string(artifact.data), full_check=True)
        found = onnx_classifier(artifact.data)(proof_images(artifact.config)[:1])
    except Exception as failure:  # of protobuf, ONNX and ONNX Runtime, which share no base
        reason = " ".join(str(failure).split())
        raise PublishError(f"{path}: expected a valid ONNX graph that runs, found {reason}") from failure
    expected = np.array([manifest.get("sample_logits", [])], np.float32)
    if found.shape != expected.shape:
        raise PublishError(f"{path}: expected logits {expected.shape} of the sample, found {found.shape}")
    error, tolerance = float(np.abs(found - expected).max()), manifest["tolerance"]
    if manifest.get("precision", "fp32") == "fp32" and not error <= tolerance:  # so written, NaN fails
        raise PublishError(f"{path}: expected the sample's logits to {tolerance:.2e}, found an error of {error:.2e}")
    if found.argmax() != expected.argmax():
        raise PublishError(f"{path}: expected class {expected.argmax()} for the sample, found {found.argmax()}")
