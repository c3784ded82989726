"""Checks a published model: hashes, config and answer. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common.repository import ONNX_FILE, served_versions, versions, wanted_versions
from export.errors import PublishError
from export.publishing.artifact import read_version
from export.publishing.publish import check_same_contract, read_config
from export.publishing.replay import replay


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
    missing = set(wanted_versions(message, present)) - set(present)
    if missing or not served_versions(message, present):
        named = f"version {min(missing)}" if missing else "any version"
        raise PublishError(f"{model_dir}: expected {named}, which config.pbtxt serves, found {present}")
    for number in present:
        yield verify_version(model_dir, number)


def verify_version(model_dir: Path, number: int) -> Verified:
    try:
        artifact = read_version(model_dir / str(number))
        check_same_contract(model_dir, read_config(model_dir), artifact.manifest)
        file = artifact.manifest.file
        if file != ONNX_FILE:
            return Verified(number, left_out=f"no answer asked of {file}, which only its own GPU runs")
        replay(artifact)
    except PublishError as error:
        return Verified(number, problem=str(error))
    return Verified(number)
