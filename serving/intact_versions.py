"""Plans which versions of a model to serve: the newest whose files are as published.

In: a model's folder. Out: a `Plan`. Triton decides for a model without any manifest.json: others published it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from common.repository import (
    CONFIG_FILE,
    LABELS_FILE,
    Damaged,
    VersionFiles,
    check_hash,
    check_links,
    has_manifest,
    read_config,
    read_labels,
    read_version_files,
    versions,
    wanted_versions,
)
from serving.parse_triton_arguments import LauncherError, check_name

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb


@dataclass(frozen=True)
class Problem:
    """Why a version is not served as published. `version` None: a file that all versions share is damaged."""

    version: int | None
    text: str


@dataclass(frozen=True)
class Plan:
    """The versions of a model to serve.

    versions: ascending; empty if no version can be served, None if Triton decides.
    config:   the configuration that serves these versions; None if no file names the inputs.
    differs:  `config` is not the configuration on disk.
    """

    model: str
    versions: tuple[int, ...] | None
    problems: tuple[Problem, ...] = ()
    config: pb.ModelConfig | None = field(default=None, compare=False)
    differs: bool = False

    @property
    def complete(self) -> bool:
        """Whether config.pbtxt is complete. With `joined_lengths` it is not: our backend then adds to it."""
        return self.versions is not None and not (self.config and "joined_lengths" in self.config.parameters)

    def json(self, again: bool = False) -> str | None:
        """The configuration for Triton's load call as JSON; None if config.pbtxt suffices.

        again: adds a parameter with the time, since Triton loads a model again only if its configuration changes.
        """
        from google.protobuf import json_format
        from tritonclient.grpc import model_config_pb2 as pb

        if self.config is None or not (self.differs or again):
            return None
        message = pb.ModelConfig()
        message.CopyFrom(self.config)
        if again:
            message.parameters["loaded_again"].string_value = str(time.time_ns())
        text: str = json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None)
        return text


def plan(model_dir: Path, refused: Mapping[int, str] | None = None) -> Plan:
    """Plans the intact versions that the policy names; an older version replaces a version that is not intact.

    Versions between those of the policy, which the policy skips, are the last choice.
    refused: version -> reason, of versions not to serve.
    """
    try:
        check_name(model_dir)
        check_links(model_dir)
        return _plan(model_dir, refused or {})
    except (LauncherError, Damaged) as error:
        return Plan(model_dir.name, (), (Problem(None, str(error)),))
    except OSError as error:  # such as an unreadable folder lost+found
        text = f"{error.filename}: expected a readable folder, found {error.strerror}"
        return Plan(model_dir.name, (), (Problem(None, text),))


def _plan(model_dir: Path, refused: Mapping[int, str]) -> Plan:
    name, present = model_dir.name, versions(model_dir)
    problems: list[Problem] = []
    try:
        message = _read_config(model_dir / CONFIG_FILE, name)
    except Damaged as error:
        message = None
        problems.append(Problem(None, str(error)))
    if not has_manifest(model_dir, present):
        return Plan(name, None, config=message)
    wanted = wanted_versions(message, present) if message else present[-2:]
    oldest, newest = min(wanted, default=0), max(wanted, default=0)
    missing = [model_dir / str(number) for number in wanted if number not in present]
    problems += [Problem(int(path.name), f"{path}: expected what config.pbtxt serves, found none") for path in missing]
    intact: dict[int, VersionFiles] = {}
    skipped = {number for number in present if oldest < number <= newest} - {*wanted}
    older = [number for number in present if number < oldest]
    for number in [*sorted({*wanted} & {*present}, reverse=True), *reversed(older), *sorted(skipped, reverse=True)]:
        # The policy may skip versions after a rollback.
        if len(intact) == len(wanted) or (intact and number in skipped):
            break
        try:
            if number in refused:
                problems.append(Problem(number, f"{model_dir / str(number)}: {refused[number]}"))
                continue
            intact[number] = check_version(model_dir / str(number))
        except Damaged as error:
            problems.append(Problem(number, str(error)))
    served = tuple(sorted(intact))
    message = message or _published_config(model_dir, served)
    if not served or message is None:
        return Plan(name, (), tuple(problems))
    labels_problem = _labels_problem(model_dir, intact[served[-1]].labels)
    problems += [Problem(None, labels_problem)] if labels_problem else []
    if served == tuple(wanted) and not any(problem.version is None for problem in problems):
        return Plan(name, served, tuple(problems), message)
    message.version_policy.Clear()
    message.version_policy.specific.versions.extend(served)
    for output in message.output if labels_problem else ():
        output.label_filename = ""
    return Plan(name, served, tuple(problems), message, differs=True)


def _read_config(path: Path, name: str) -> pb.ModelConfig:
    message = read_config(path)
    if message.name != name or not message.input or not message.output:
        raise Damaged(path, f"name {name!r}, inputs and outputs", f"name {message.name!r}")
    return message


def _published_config(model_dir: Path, served: Sequence[int]) -> pb.ModelConfig | None:
    """The configuration with which the newest of these versions was published, in place of a damaged config.pbtxt."""
    for number in reversed(served):
        try:
            return _read_config(model_dir / str(number) / CONFIG_FILE, model_dir.name)
        except Damaged:
            continue
    return None


def check_version(folder: Path) -> VersionFiles:
    """Compares a version's files with their hashes. Raises Damaged."""
    version_files = read_version_files(folder)
    for path, digest in version_files.files.items():
        check_hash(folder / path, digest, "the model")
    return version_files


def _labels_problem(model_dir: Path, expected: Sequence[str] | None) -> str | None:
    """The fault of labels.txt, or None. `expected` None: a network that this project has not trained has no labels."""
    path = model_dir / LABELS_FILE
    if expected is None:
        return None
    try:
        labels = read_labels(model_dir)
    except (OSError, UnicodeDecodeError) as error:
        return f"{path}: expected {len(expected)} labels, found {error!r}"
    return None if labels == expected else f"{path}: expected {len(expected)} labels, found {len(labels)} or others"
