"""Judges by the files which versions of a model are whole.

Models without any manifest.json are not this project's: Triton decides.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serving.arguments import check_name

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

CONFIG_FILE, LABELS_FILE, MANIFEST_FILE = "config.pbtxt", "labels.txt", "manifest.json"


class Broken(Exception):
    pass


@dataclass(frozen=True)
class Problem:
    """Version None: a file that all versions share is at fault."""

    version: int | None
    text: str


@dataclass(frozen=True)
class Plan:
    """`versions`: ascending, empty if nothing can be served, None if Triton decides.

    `config`: what serves them, None if no file names the inputs; `differs`: from config.pbtxt.
    """

    model: str
    versions: tuple[int, ...] | None
    problems: tuple[Problem, ...] = ()
    config: pb.ModelConfig | None = field(default=None, compare=False)
    differs: bool = False

    def json(self, again: bool = False) -> str | None:
        """For Triton's load call; `again`: it loads although nothing has changed."""
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
    """The newest whole versions, as many as the policy serves; `refused`: others, with the reason."""
    try:
        check_name(model_dir)
    except ValueError as error:
        return Plan(model_dir.name, (), (Problem(None, str(error)),))
    try:
        return _plan(model_dir, refused or {})
    except OSError as error:  # such as lost+found
        text = f"{error.filename}: expected a readable folder, found {error.strerror}"
        return Plan(model_dir.name, (), (Problem(None, text),))


def _plan(model_dir: Path, refused: Mapping[int, str]) -> Plan:
    name, present = model_dir.name, present_versions(model_dir)
    problems: list[Problem] = []
    try:
        message = _read_config(model_dir / CONFIG_FILE, name)
    except Broken as error:
        message = None
        problems.append(Problem(None, str(error)))
    if not is_ours(model_dir, present):
        return Plan(name, None, config=message)
    wanted = _served(message, present) if message else present[-2:]
    missing = [model_dir / str(number) for number in wanted if number not in present]
    problems += [Problem(int(path.name), f"{path}: expected what config.pbtxt serves, found none") for path in missing]
    whole: dict[int, Mapping[str, Any]] = {}
    for number in sorted((each for each in present if each <= max(wanted, default=0)), reverse=True):
        if len(whole) == len(wanted):
            break
        try:
            if number in refused:
                raise Broken(f"{model_dir / str(number)}: {refused[number]}")
            whole[number] = check_version(model_dir / str(number))
        except Broken as error:
            problems.append(Problem(number, str(error)))
    chosen = tuple(sorted(whole))
    message = message or _published_config(model_dir, chosen)
    if not chosen or message is None:
        return Plan(name, (), tuple(problems))
    labels = _labels_problem(model_dir, whole[chosen[-1]])
    problems += [Problem(None, labels)] if labels else []
    if chosen == tuple(wanted) and not any(problem.version is None for problem in problems):
        return Plan(name, chosen, tuple(problems), message)
    message.version_policy.Clear()
    message.version_policy.specific.versions.extend(chosen)
    for output in message.output if labels else ():
        output.label_filename = ""
    return Plan(name, chosen, tuple(problems), message, differs=True)


def is_ours(model_dir: Path, versions: Iterable[int]) -> bool:
    return any((model_dir / str(number) / MANIFEST_FILE).exists() for number in versions)


def state(folder: Path) -> tuple[object, ...]:
    """Changes with the files of a version."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return tuple((path, each.st_ino, each.st_size, each.st_ctime_ns) for path in files for each in [path.stat()])


def present_versions(model_dir: Path) -> list[int]:
    """Ascending, without leading zeros, as Triton does."""
    names = (path.name for path in model_dir.iterdir() if path.is_dir())
    return sorted(int(name) for name in names if re.fullmatch("[1-9][0-9]*", name) and int(name) < 1 << 63)


def _read_config(path: Path, name: str) -> pb.ModelConfig:
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as pb

    try:
        message = text_format.Parse(path.read_text(), pb.ModelConfig())
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        reason = " ".join(str(error).split())
        raise Broken(f"{path}: expected the configuration of a model, found {reason}") from error
    if message.name != name or not message.input or not message.output:
        raise Broken(f"{path}: expected name {name!r}, inputs and outputs, found name {message.name!r}")
    return message


def _published_config(model_dir: Path, chosen: Sequence[int]) -> pb.ModelConfig | None:
    for number in reversed(chosen):
        try:
            return _read_config(model_dir / str(number) / CONFIG_FILE, model_dir.name)
        except Broken:
            continue
    return None


def _served(message: pb.ModelConfig, present: Sequence[int]) -> list[int]:
    policy = message.version_policy
    kind = policy.WhichOneof("policy_choice")
    if kind == "all":
        return list(present)
    if kind == "specific":
        return sorted(policy.specific.versions)
    return list(present[-(policy.latest.num_versions or 1) :])


def check_version(folder: Path) -> dict[str, Any]:
    """The manifest; raises Broken."""
    path = folder / MANIFEST_FILE
    try:
        manifest: dict[str, Any] = json.loads(path.read_text())
        files = {str(place): str(digest) for place, digest in manifest["files"].items()}
        if not files or any(Path(place).is_absolute() or ".." in Path(place).parts for place in files):
            raise ValueError(f"files {list(files)}")
        _labels(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Broken(f"{path}: expected the manifest of an export, found {error!r}") from error
    for place, expected in files.items():
        if (found := _sha256(folder / place)) != expected:
            raise Broken(f"{folder}: expected the SHA-256 {expected} of {place}, found {found}")
    return manifest


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise Broken(f"{path}: expected the model, found {error.strerror}") from error
    return digest.hexdigest()


def _labels(manifest: Mapping[str, Any]) -> list[str] | None:
    """None for a network of another origin."""
    return [str(label) for label in manifest["model_config"]["labels"]] if "model_config" in manifest else None


def _labels_problem(model_dir: Path, manifest: Mapping[str, Any]) -> str | None:
    path, expected = model_dir / LABELS_FILE, _labels(manifest)
    if expected is None:
        return None
    try:
        labels = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        return f"{path}: expected {len(expected)} labels, found {error!r}"
    return None if labels == expected else f"{path}: expected {len(expected)} labels, found {len(labels)} or others"
