"""Checks a published model: names of versions, hashes, config, labels, and the answer to the sample.

In: a model's folder. Out: a `Verified` for each version. Changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from common.repository import CONFIG_FILE, ONNX_FILE, Damaged, check_links, served_versions, versions, wanted_versions
from common.repository import read_config as repository_config
from export.errors import PublishError, as_published
from export.publishing.artifact import open_version, read_version
from export.publishing.config_parameters import config_parameters
from export.publishing.publish import read_config
from export.publishing.replay_sample import replay
from export.publishing.same_contract import check_same_contract

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb


@dataclass(frozen=True)
class Verified:
    """The result for a version. `folder`: its name. `problem`: None if all is as published.

    `left_out`: a check that this machine cannot make; None if all were made.
    """

    folder: str
    problem: str | None = None
    left_out: str | None = None


def verify_model(model_dir: Path) -> Iterator[Verified]:
    """Checks all versions. Raises PublishError if config.pbtxt is wrong, or serves a version that is missing."""
    with as_published():
        check_links(model_dir)
    message = read_config(model_dir)
    present = versions(model_dir)
    missing = set(wanted_versions(message, present)) - set(present)
    if missing or not served_versions(message, present):
        named = f"version {min(missing)}" if missing else "any version"
        raise PublishError(f"{model_dir}: expected {named}, which config.pbtxt serves, found {present}")
    for number in present:
        verified = verify_version(model_dir, number)
        yield verified
        if not verified.problem:
            yield from _damaged_copy(model_dir / str(number))
    yield from _wrong_parameters(model_dir, message, max(served_versions(message, present)))
    numbers = {str(number) for number in present}
    for path in sorted(model_dir.iterdir()):
        if path.is_dir() and re.fullmatch("[0-9]+", path.name) and path.name not in numbers:
            expected = "a version number below 2^63 without leading zeros"
            yield Verified(path.name, f"{path}: expected {expected}, found {path.name}: servers ignore the folder")


def _damaged_copy(folder: Path) -> Iterator[Verified]:
    """A version's copy of config.pbtxt that a supervisor could not read. Versions of older releases have none."""
    try:
        repository_config(folder / CONFIG_FILE)
    except Damaged as damage:
        if not isinstance(damage.__cause__, FileNotFoundError):
            yield Verified(folder.name, str(damage))


def _wrong_parameters(model_dir: Path, message: pb.ModelConfig, default: int) -> Iterator[Verified]:
    """The parameters from which clients learn about the default version, such as its temperature, that are not its."""
    with suppress(PublishError):  # a damaged version has a result of its own
        for name, expected in config_parameters(open_version(model_dir / str(default)).manifest).items():
            found = message.parameters[name].string_value if name in message.parameters else None
            if not _is_same(found, expected):
                remedy = f"vitbn repository promote {model_dir.name} {default} writes it again"
                values = f"{name}: expected {expected!s:.40}, found {found!s:.40}: {remedy}"
                yield Verified("-", f"{model_dir / CONFIG_FILE}: {values}")


def _is_same(found: str | None, expected: str | None) -> bool:
    """Whether a parameter is as expected. An older release may have written JSON with fewer fields."""
    if found is None or expected is None or not expected.startswith("{"):
        return found == expected
    try:
        return bool(json.loads(found).items() <= json.loads(expected).items())
    except (ValueError, AttributeError, RecursionError):
        return False


def verify_version(model_dir: Path, number: int) -> Verified:
    """Checks a version. Only an ONNX file is also run on its sample."""
    folder = model_dir / str(number)
    try:
        artifact = read_version(folder)
        check_same_contract(model_dir, read_config(model_dir), artifact.manifest)
        file = artifact.manifest.file
        if file != ONNX_FILE:
            return Verified(folder.name, left_out=f"no answer asked of {file}, which only its own GPU runs")
        replay(artifact, artifact.path)
    except PublishError as error:
        return Verified(folder.name, problem=str(error))
    return Verified(folder.name)
