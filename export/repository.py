"""The Triton model repository on disk: <model>/config.pbtxt, labels.txt, <version>/model.onnx and manifest.json.

In: a proven export. Out: a new version, published by one rename; no reader ever sees half of one, none is ever changed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from export.graph import Exported
from export.triton_config import LABELS_FILE, triton_config
from models.files import write_atomically

CONFIG_FILE = "config.pbtxt"
MODEL_FILE = "model.onnx"
MANIFEST_FILE = "manifest.json"


class PublishError(Exception):
    """A model that cannot be published; the message names the path, what was expected and what was found."""


def publish(repository: Path, name: str, exported: Exported) -> Path:
    """Publishes `exported` as the next version of the model `name` and returns that version's folder.

    A new model appears whole; of a model that is there, config.pbtxt and labels.txt are replaced, then the version
    appears. Raises PublishError for a name Triton would not take, or a model whose classes or image shape are others.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise PublishError(f"model name: expected letters, digits, _ and -, found {name!r}")
    config = triton_config(name, exported.config, exported.manifest)
    model_dir = repository / name
    repository.mkdir(parents=True, exist_ok=True)
    # Triton takes every folder in the repository for a model, so a new one is put together beside the repository.
    staging_parent = model_dir if model_dir.is_dir() else repository.absolute().parent
    with _staging(staging_parent) as staging:
        if not model_dir.is_dir():
            _write_model_files(staging, exported, config)
            _write_version(staging / "1", exported)
            if _renamed(staging, model_dir):
                return model_dir / "1"
        _check_same_contract(model_dir, exported)
        _write_model_files(model_dir, exported, config)
        version = staging / "version"
        _write_version(version, exported)
        number = 1 + max(versions(model_dir), default=0)
        while not _renamed(version, model_dir / str(number)):
            number += 1
        return model_dir / str(number)


def versions(model_dir: Path) -> list[int]:
    """The versions published in `model_dir`, ascending."""
    return sorted(int(path.name) for path in model_dir.iterdir() if path.is_dir() and path.name.isdecimal())


@contextmanager
def _staging(parent: Path) -> Iterator[Path]:
    """A folder on the file system of the repository, gone afterwards unless it was renamed into it."""
    path = Path(tempfile.mkdtemp(prefix=".publishing-", dir=parent))
    path.chmod(0o755)  # mkdtemp makes it private; the server may run as someone else
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _write_model_files(folder: Path, exported: Exported, config: str) -> None:
    write_atomically(folder / LABELS_FILE, "".join(f"{label}\n" for label in exported.config.labels).encode())
    write_atomically(folder / CONFIG_FILE, config.encode())


def _write_version(folder: Path, exported: Exported) -> None:
    write_atomically(folder / MODEL_FILE, exported.onnx)
    write_atomically(folder / MANIFEST_FILE, json.dumps(exported.manifest, indent=2).encode())


def _renamed(source: Path, target: Path) -> bool:
    """Renames a folder and makes it last; False where another publisher was there first."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise PublishError(f"{target}: expected to rename {source.name} to it, found: {error.strerror}") from error
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


def _check_same_contract(model_dir: Path, exported: Exported) -> None:
    """A client that knows one version must be able to ask the next: same image shape, same classes."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as pb

    path = model_dir / CONFIG_FILE
    try:
        published = text_format.Parse(path.read_text(), pb.ModelConfig())
        shape, labels = tuple(published.input[0].dims), tuple((model_dir / LABELS_FILE).read_text().splitlines())
    except (OSError, IndexError, text_format.ParseError) as error:
        raise PublishError(f"{path}: expected the config of a published model, found {error}") from error
    config = exported.config
    if (shape, labels) != (config.input_shape, config.labels):
        raise PublishError(
            f"{model_dir}: expected a model for {config.input_shape} images and classes {', '.join(config.labels)}, "
            f"found one for {shape} and {', '.join(labels)}; publish it under another --name"
        )
