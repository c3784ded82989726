"""Reads the model repository: MODEL/config.pbtxt, MODEL/labels.txt, MODEL/VERSION/manifest.json and the files it lists.

In: the folder of a model or of a version. Out: the model's versions, the versions that its policy serves, the hashes
of a version's files, the labels; `Damaged` for a file that is not as published. export/publishing/ writes the files.
Source: triton-inference-server/server, docs/user_guide/model_repository.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.files import reason, regular, sha256

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

CONFIG_FILE, LABELS_FILE = "config.pbtxt", "labels.txt"
MANIFEST_FILE, SAMPLE_FILE, ONNX_FILE, PLAN_FILE = "manifest.json", "sample.npz", "model.onnx", "model.plan"


class Damaged(Exception):
    """A file is missing or not as published; `found` describes the file that is there."""

    def __init__(self, path: Path | str, expected: str, found: str) -> None:
        super().__init__(f"{path}: expected {expected}, found {found}")
        self.found = found


@dataclass(frozen=True)
class VersionFiles:
    """A version's files, as its manifest lists them.

    file:   path of the file that Triton loads, relative to the version's folder.
    files:  path relative to the version's folder -> SHA-256.
    labels: None for a network that this project has not trained.
    """

    file: str
    files: Mapping[str, str]
    labels: tuple[str, ...] | None

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> VersionFiles:
        """Reads a manifest. Raises ValueError, LookupError, TypeError or AttributeError for other JSON."""
        file, files = manifest["file"], manifest["files"]
        for path, digest in files.items():
            if not isinstance(digest, str) or Path(path).is_absolute() or ".." in Path(path).parts:
                raise ValueError(f"files {path!r}: {digest!r}")
        if not isinstance(file, str):
            raise TypeError(f"file {file!r}")
        if file not in files:
            raise KeyError(file)
        model_config = manifest.get("model_config")
        labels = None if model_config is None else tuple(str(label) for label in model_config["labels"])
        return cls(file, files, labels)


def model_dir(repositories: Iterable[Path], model: str) -> Path | None:
    """The model's folder in the first repository that has the model, as Triton chooses; None without such a folder."""
    return next((folder / model for folder in repositories if (folder / model).is_dir()), None)


def versions(model_dir: Path) -> list[int]:
    """The version numbers, ascending. Like Triton, ignores folders of other names, leading zeros and over 63 bits."""
    names = (path.name for path in model_dir.iterdir() if path.is_dir())
    return sorted(int(name) for name in names if re.fullmatch("[1-9][0-9]*", name) and int(name) < 1 << 63)


def check_links(folder: Path) -> None:
    """Raises Damaged for a broken link in a repository or in a model's folder: Triton then loads nothing from it."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() and not path.exists():
            raise Damaged(path, "a file or a folder", "a broken link, with which Triton loads no version")


def has_manifest(model_dir: Path, present: Iterable[int]) -> bool:
    """Whether a version of `present` has a manifest: this project published the model."""
    return any((model_dir / str(number) / MANIFEST_FILE).exists() for number in present)


def read_config(path: Path) -> pb.ModelConfig:
    """Parses config.pbtxt. Raises Damaged."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as pb

    try:
        return text_format.Parse(regular(path).read_text("utf-8"), pb.ModelConfig())
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise Damaged(path, "the configuration of a model", reason(error)) from error


def wanted_versions(config: pb.ModelConfig, present: Collection[int]) -> list[int]:
    """The versions that the version policy names, ascending, including missing versions."""
    policy, ascending = config.version_policy, sorted(present)
    kind = policy.WhichOneof("policy_choice")
    if kind == "specific":
        return sorted(policy.specific.versions)
    return ascending if kind == "all" else ascending[-(policy.latest.num_versions or 1) :]


def served_versions(config: pb.ModelConfig, present: Collection[int]) -> list[int]:
    """The present versions that the policy serves, ascending; the highest answers requests that name no version."""
    return [number for number in wanted_versions(config, present) if number in present]


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads manifest.json. Raises Damaged for JSON that `VersionFiles.of` does not accept."""
    try:
        manifest: dict[str, Any] = json.loads(regular(path).read_text("utf-8"))
        if not isinstance(manifest, dict):
            raise TypeError("no JSON object")
        VersionFiles.of(manifest)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(path, "the manifest of an export", reason(error)) from error
    return manifest


def is_axes_by_name(value: Any) -> bool:
    """Whether a value of a manifest, such as `never_empty`, maps names to lists of axes."""
    lists = value.values() if isinstance(value, dict) else [None]
    return all(isinstance(axes, list) and all(isinstance(axis, int) and axis >= 0 for axis in axes) for axes in lists)


def read_version_files(folder: Path) -> VersionFiles:
    """Reads the manifest in a version's folder. Raises Damaged."""
    return VersionFiles.of(read_manifest(folder / MANIFEST_FILE))


def check_hash(path: Path, expected: str, what: str) -> None:
    """Raises Damaged unless the file has the SHA-256 `expected`; `what` names the file's role if it is missing."""
    try:
        digest = sha256(regular(path))
    except OSError as error:
        raise Damaged(path, what, reason(error)) from error
    if digest != expected:
        raise Damaged(path, f"the SHA-256 {expected}", digest)


def labels_text(labels: Sequence[str]) -> str:
    """The content of labels.txt: a label a line."""
    return "".join(f"{label}\n" for label in labels)


def read_labels(model_dir: Path) -> tuple[str, ...]:
    """Reads labels.txt as Triton does: only a line feed ends a label. Raises OSError and UnicodeDecodeError."""
    return tuple(regular(model_dir / LABELS_FILE).read_bytes().decode("utf-8").removesuffix("\n").split("\n"))
