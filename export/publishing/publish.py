"""The Triton model repository on disk: <model>/config.pbtxt, labels.txt, <version>/model.onnx and manifest.json.

In: a proven artifact. Out: a new version, published by a rename: readers see all of it or nothing. A version never
changes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from export.publishing.artifact import (
    MANIFEST_FILE,
    ONNX_FILE,
    PLAN_FILE,
    SAMPLE_FILE,
    Artifact,
    PublishError,
    check_manifest,
    read_manifest,
)
from export.publishing.triton_config import (
    LABELS_FILE,
    Serving,
    configure,
    describe,
    engine_of,
    image_shape,
    new_config,
    serve_versions,
    served_versions,
    set_limits,
    store_probe,
    to_text,
)
from models.files import write_atomically

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

CONFIG_FILE = "config.pbtxt"
LOCK_FILE = ".lock"
STAGING = ".publishing-"


def publish(repository: Path, name: str, artifact: Artifact, serving: Serving | None = None) -> Path:
    """Publishes the next version and serves it beside the former default; returns its folder.

    An existing config.pbtxt keeps what `serving` does not set, except TF32 and TensorRT's batch sizes, which follow the
    served versions. Raises PublishError.
    """
    check_name(name)
    model_dir, serving = repository / name, serving or Serving()
    check_manifest(model_dir, artifact.manifest)
    with locked(repository):
        if not model_dir.is_dir():
            message = new_config(name, artifact.config, serving)
            _check_kind(model_dir, message, artifact)
            if engine_of(message) == "tensorrt":
                set_limits(message, [artifact.manifest])
            return _add(model_dir, artifact, message, [])
        message = read_config(model_dir)
        check_same_contract(model_dir, message, artifact)
        if serving.engine and serving.engine != engine_of(message):
            raise PublishError(
                f"{model_dir}: expected a model for {serving.engine}, found a model for {engine_of(message)}; "
                "publish it under another --name"
            )
        default = served_versions(message, versions(model_dir))[-1:]
        configure(message, serving)
        if engine_of(message) == "tensorrt":
            beside = (read_manifest(model_dir / str(each) / MANIFEST_FILE) for each in default)
            set_limits(message, [*beside, artifact.manifest])
        return _add(model_dir, artifact, message, default)


def _add(model_dir: Path, artifact: Artifact, message: pb.ModelConfig, default: Sequence[int]) -> Path:
    def write(folder: Path, number: int) -> None:
        describe(message, artifact.manifest)
        store_probe(message, _readable_manifests(model_dir, default) | {number: artifact.manifest})
        _write_version(folder, artifact, message)

    def write_config(folder: Path, number: int) -> None:
        if number == 1:
            labels = "".join(f"{label}\n" for label in artifact.config.labels)
            write_atomically(folder / LABELS_FILE, labels.encode())
        _write_config(folder, message, [*default, number])

    return add_version(model_dir, write, write_config)


def add_version(model_dir: Path, write: Callable[[Path, int], None], write_config: Callable[[Path, int], None]) -> Path:
    """Returns the next version's folder; the caller holds the lock.

    `write` fills that folder, `write_config` writes config.pbtxt into the model's folder.
    """
    if not model_dir.is_dir():
        with _staging_beside(model_dir.parent) as staging:
            (staging / "1").mkdir()
            write(staging / "1", 1)
            write_config(staging, 1)
            _rename(staging, model_dir)
        return model_dir / "1"
    number = 1 + max(versions(model_dir), default=0)
    # The version first: Triton refuses a config that names a missing version.
    with _staging(model_dir) as staging:
        write(staging, number)
        _rename(staging, model_dir / str(number))
    try:
        write_config(model_dir, number)
    except BaseException:  # the policy in config.pbtxt may serve it already
        remove_version(model_dir, number)
        raise
    return model_dir / str(number)


def check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise PublishError(f"model name: expected letters, digits, _ and -, found {name!r}")


def serve(model_dir: Path, served: Sequence[int]) -> None:
    """Serves exactly these versions; the highest is the default."""
    with locked(model_dir.parent):
        _write_config(model_dir, read_config(model_dir), served)


def versions(model_dir: Path) -> list[int]:
    """Ascending. Ignores other folders, leading zeros and what needs over 63 bits."""
    names = (path.name for path in model_dir.iterdir() if path.is_dir())
    return sorted(int(name) for name in names if re.fullmatch("[1-9][0-9]*", name) and int(name) < 1 << 63)


def remove_version(model_dir: Path, number: int) -> None:
    """Renames first: no server sees half a version. Of a symlink, removes only the link."""
    if (model_dir / str(number)).is_symlink():
        (model_dir / str(number)).unlink()
        return
    with _staging(model_dir) as staging:
        _rename(model_dir / str(number), staging)


def remove_model(model_dir: Path) -> None:
    with _staging_beside(model_dir.parent) as staging:
        _rename(model_dir, staging)


def sweep(repository: Path) -> list[Path]:
    """Removes the leftovers of killed publishers."""
    with locked(repository):
        whole = repository.resolve()
        left = [*whole.parent.glob(f"{STAGING}{whole.name}-????????"), *whole.glob(f"*/{STAGING}*")]
        left += whole.glob(f"*/.{CONFIG_FILE}.*")  # left by write_atomically
        for path in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return left


@contextmanager
def locked(repository: Path, name: str = LOCK_FILE) -> Iterator[None]:
    """The lock ends with its process. Creates a missing repository."""
    repository.mkdir(parents=True, exist_ok=True)
    with (repository / name).open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_config(model_dir: Path) -> pb.ModelConfig:
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
    """Raises PublishError for another image shape, other classes or kind of file: clients read these once."""
    config, path = artifact.config, model_dir / LABELS_FILE
    try:
        labels = tuple(path.read_text().splitlines())
    except (OSError, UnicodeDecodeError) as error:
        found = error.strerror if isinstance(error, OSError) else error
        raise PublishError(f"{path}: expected the classes of a published model, found {found}") from error
    shape = image_shape(message)
    if (shape, labels) != (config.input_shape, config.labels):
        raise PublishError(
            f"{model_dir}: expected a model for {config.input_shape} images and classes {_shown(config.labels)}, "
            f"found {shape} and {_shown(labels)}; publish it under another --name"
        )
    _check_kind(model_dir, message, artifact)


def _shown(labels: Sequence[str]) -> str:
    return ", ".join(label if label.isprintable() else ascii(label) for label in labels)


def _check_kind(model_dir: Path, message: pb.ModelConfig, artifact: Artifact) -> None:
    expected = PLAN_FILE if engine_of(message) == "tensorrt" else ONNX_FILE
    if artifact.file_name != expected:
        raise PublishError(f"{model_dir}: expected a {expected}, found a {artifact.file_name}")


def _write_config(model_dir: Path, message: pb.ModelConfig, served: Sequence[int]) -> None:
    serve_versions(message, served, versions(model_dir))
    if engine_of(message) == "tensorrt":
        set_limits(message, [read_manifest(model_dir / str(number) / MANIFEST_FILE) for number in served])
    if not (model_dir / str(max(served)) / SAMPLE_FILE).exists():  # foreign models have no checkpoint to describe
        describe(message, read_manifest(model_dir / str(max(served)) / MANIFEST_FILE))
        store_probe(message, _readable_manifests(model_dir, served))
    write_atomically(model_dir / CONFIG_FILE, to_text(message).encode())


def _readable_manifests(model_dir: Path, served: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Skips broken manifests: they must not stop a new version."""
    manifests = {}
    for number in sorted(served):
        with suppress(PublishError):
            manifests[number] = read_manifest(model_dir / str(number) / MANIFEST_FILE)
    return manifests


def _write_version(folder: Path, artifact: Artifact, message: pb.ModelConfig) -> None:
    """With a config, which a supervisor reads if the model's own is broken."""
    write_atomically(folder / CONFIG_FILE, to_text(message).encode())
    write_atomically(folder / artifact.file_name, artifact.data)
    write_atomically(folder / MANIFEST_FILE, artifact.manifest_json())


@contextmanager
def _staging(parent: Path, prefix: str = STAGING) -> Iterator[Path]:
    """A folder on the repository's file system."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    path.chmod(0o755)  # mkdtemp makes it private; the server may be another user
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _staging_beside(repository: Path) -> AbstractContextManager[Path]:
    """Outside the repository: Triton takes every folder in it for a model. Beside a link no rename may reach it."""
    return _staging(repository.resolve().parent, f"{STAGING}{repository.resolve().name}-")


def _rename(source: Path, target: Path) -> None:
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
