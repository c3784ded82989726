"""The Triton model repository on disk: <model>/config.pbtxt, labels.txt, <version>/model.onnx and manifest.json.

In: a proven artifact. Out: a new version, published by one rename; no reader ever sees half of one, none is ever
changed. config.pbtxt alone says which versions are served, so to promote one or to fall back is one atomic write.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from export.artifact import MANIFEST_FILE, ONNX_FILE, PLAN_FILE, Artifact, PublishError, read_manifest
from export.triton_config import (
    LABELS_FILE,
    Serving,
    configure,
    describe,
    engine_of,
    image_shape,
    new_config,
    serve_versions,
    served_versions,
    to_text,
)
from models.files import write_atomically

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

CONFIG_FILE = "config.pbtxt"
LOCK_FILE = ".lock"
STAGING = ".publishing-"


def publish(repository: Path, name: str, artifact: Artifact, serving: Serving | None = None) -> Path:
    """Publishes `artifact` as the next version of the model `name` and returns that version's folder.

    It is served beside the version that was the newest one served, by a server that starts now or loads the model. A
    new model appears whole; of one that is there config.pbtxt keeps what its operator set, but for the instances and
    threads that `serving` asks for. Raises PublishError for a name Triton would not take, or a model whose engine,
    classes or image shape are others.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise PublishError(f"model name: expected letters, digits, _ and -, found {name!r}")
    model_dir, serving = repository / name, serving or Serving()
    with locked(repository):
        if not model_dir.is_dir():
            return _publish_first(model_dir, artifact, serving)
        message = read_config(model_dir)
        check_same_contract(model_dir, message, artifact)
        if serving.engine and serving.engine != engine_of(message):
            raise PublishError(
                f"{model_dir}: expected a model for {serving.engine}, found one for {engine_of(message)}; "
                "publish it under another --name"
            )
        present = versions(model_dir)
        number, default = 1 + max(present, default=0), served_versions(message, present)[-1:]
        # The version comes first: a config that names one that is not there would not load.
        with _staging(model_dir) as staging:
            _write_version(staging, artifact)
            _rename(staging, model_dir / str(number))
        configure(message, serving)
        _write_config(model_dir, message, [*default, number])
        return model_dir / str(number)


def serve(model_dir: Path, served: Sequence[int]) -> None:
    """Lets servers serve the versions `served` of a model, the highest to whom asks for none; one atomic write."""
    with locked(model_dir.parent):
        _write_config(model_dir, read_config(model_dir), served)


def versions(model_dir: Path) -> list[int]:
    """The versions published in `model_dir`, ascending; like Triton, not seeing other folders and leading zeros."""
    found = (path.name for path in model_dir.iterdir() if path.is_dir())
    return sorted(int(name) for name in found if re.fullmatch("[1-9][0-9]*", name))


def remove_version(model_dir: Path, number: int) -> None:
    """Removes a version such that no server finds half of it: renamed first, then deleted."""
    with _staging(model_dir) as staging:
        _rename(model_dir / str(number), staging)


def remove_model(model_dir: Path) -> None:
    """Removes a model and all of its versions, as a whole."""
    with _staging_beside(model_dir.parent) as staging:
        _rename(model_dir, staging)


def sweep(repository: Path) -> list[Path]:
    """Removes what publishers that were killed left behind, and returns it."""
    with locked(repository):
        whole = repository.absolute()
        left = [*whole.parent.glob(f"{STAGING}{whole.name}-????????"), *whole.glob(f"*/{STAGING}*")]
        left += whole.glob(f"*/.{CONFIG_FILE}.*")  # of write_atomically
        for path in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return left


@contextmanager
def locked(repository: Path, name: str = LOCK_FILE) -> Iterator[None]:
    """One publisher at a time; the lock of one that is killed is free. Makes the repository where there is none."""
    repository.mkdir(parents=True, exist_ok=True)
    with (repository / name).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_config(model_dir: Path) -> pb.ModelConfig:
    """The config.pbtxt of a published model; raises PublishError where there is none, or another one."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as pb

    path = model_dir / CONFIG_FILE
    try:
        message = text_format.Parse(path.read_text(), pb.ModelConfig())
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise PublishError(f"{path}: expected the config of a published model, found {error}") from error
    if not message.input or not message.output:
        raise PublishError(f"{path}: expected the config of a published model, found no input or no output")
    return message


def check_same_contract(model_dir: Path, message: pb.ModelConfig, artifact: Artifact) -> None:
    """Raises PublishError where `artifact` is none for that model: a client must be able to ask version after version.

    The image shape, the classes and the kind of file are to be the same.
    """
    config, path = artifact.config, model_dir / LABELS_FILE
    try:
        labels = tuple(path.read_text().splitlines())
    except OSError as error:
        raise PublishError(f"{path}: expected the classes of a published model, found {error.strerror}") from error
    shape = image_shape(message)
    if (shape, labels) != (config.input_shape, config.labels):
        raise PublishError(
            f"{model_dir}: expected a model for {config.input_shape} images and classes {', '.join(config.labels)}, "
            f"found one for {shape} and {', '.join(labels)}; publish it under another --name"
        )
    _check_kind(model_dir, message, artifact)


def _check_kind(model_dir: Path, message: pb.ModelConfig, artifact: Artifact) -> None:
    expected = PLAN_FILE if engine_of(message) == "tensorrt" else ONNX_FILE
    if artifact.file_name != expected:
        raise PublishError(f"{model_dir}: expected a {expected}, found a {artifact.file_name}")


def _publish_first(model_dir: Path, artifact: Artifact, serving: Serving) -> Path:
    message = new_config(model_dir.name, artifact.config, serving)
    _check_kind(model_dir, message, artifact)
    with _staging_beside(model_dir.parent) as staging:
        labels = "".join(f"{label}\n" for label in artifact.config.labels)
        write_atomically(staging / LABELS_FILE, labels.encode())
        _write_version(staging / "1", artifact)
        _write_config(staging, message, [1])
        _rename(staging, model_dir)
    return model_dir / "1"


def _write_config(model_dir: Path, message: pb.ModelConfig, served: Sequence[int]) -> None:
    """config.pbtxt that serves `served` and describes the highest of these."""
    serve_versions(message, served, versions(model_dir))
    describe(message, read_manifest(model_dir / str(max(served)) / MANIFEST_FILE))
    write_atomically(model_dir / CONFIG_FILE, to_text(message).encode())


def _write_version(folder: Path, artifact: Artifact) -> None:
    write_atomically(folder / artifact.file_name, artifact.data)
    write_atomically(folder / MANIFEST_FILE, artifact.manifest_json())


@contextmanager
def _staging(parent: Path, prefix: str = STAGING) -> Iterator[Path]:
    """A folder on the file system of the repository, gone afterwards unless it was renamed into it."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    path.chmod(0o755)  # mkdtemp makes it private; the server may run as someone else
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _staging_beside(repository: Path) -> AbstractContextManager[Path]:
    """For whole models: Triton takes every folder in the repository for one, hidden or empty ones too."""
    return _staging(repository.absolute().parent, f"{STAGING}{repository.absolute().name}-")


def _rename(source: Path, target: Path) -> None:
    """Renames a folder and makes it last; raises PublishError where it cannot."""
    try:
        source.rename(target)
    except OSError as error:
        found = "something there already" if error.errno in (errno.ENOTEMPTY, errno.EEXIST) else error.strerror
        raise PublishError(f"{target}: expected to rename {source.name} to it, found {found}") from error
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
