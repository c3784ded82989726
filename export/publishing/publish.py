"""The Triton model repository on disk: <model>/config.pbtxt, labels.txt, <version>/model.onnx and manifest.json.

In: an artifact. Out: a new version, published by a rename: readers see all of it or nothing. An ONNX file first answers
its sample from there. A version never changes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from export.errors import PublishError, reason
from export.publishing.artifact import ONNX_FILE, PLAN_FILE, Artifact, open_version, read_version
from export.publishing.beside import put
from export.publishing.manifest import MANIFEST_FILE, Manifest, read_manifest
from export.publishing.replay import replay
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
    warm_up,
)
from models.config import ModelConfig
from models.files import naming, write_atomically, writing

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

CONFIG_FILE = "config.pbtxt"
LOCK_FILE = ".lock"
STAGING = ".publishing-"
MOST_LETTERS = 200  # of a model's name; a file system takes 255
WARMUP = "warmup"  # Triton's folder of inputs


def publish(repository: Path, name: str, artifact: Artifact, serving: Serving | None = None) -> Path:
    """Publishes the next version and serves it beside the former default; returns its folder.

    An existing config.pbtxt keeps what `serving` does not set, except TF32 and TensorRT's batch sizes, which follow the
    served versions. Raises PublishError, also for an ONNX file that does not answer its sample.
    """
    check_name(name)
    model_dir, serving, manifest = repository / name, serving or Serving(), artifact.manifest
    with locked(repository), writing(model_dir):
        if model_dir.is_dir():
            message = _next_config(model_dir, manifest, serving)
            default = served_versions(message, versions(model_dir))[-1:]
        else:
            message, default = new_config(name, manifest, serving), []
        _check_kind(model_dir, message, manifest)
        if engine_of(message) == "tensorrt":
            beside = (read_manifest(model_dir / str(each) / MANIFEST_FILE) for each in default)
            set_limits(message, [*beside, manifest])
        return _add(model_dir, artifact, message, default)


def _next_config(model_dir: Path, manifest: Manifest, serving: Serving) -> pb.ModelConfig:
    message = read_config(model_dir)
    check_same_contract(model_dir, message, manifest)
    if serving.engine and serving.engine != engine_of(message):
        raise PublishError(
            f"{model_dir}: expected a model for {serving.engine}, found a model for {engine_of(message)}; "
            "publish it under another --name"
        )
    configure(message, manifest, serving)
    return message


def _add(model_dir: Path, artifact: Artifact, message: pb.ModelConfig, default: Sequence[int]) -> Path:
    """The version first: Triton refuses a config that names a missing version."""
    manifest, new = artifact.manifest, not model_dir.is_dir()
    number = 1 if new else 1 + max(versions(model_dir), default=0)
    files = warm_up(message, artifact.sample.inputs, number) if manifest.config is None else {}
    describe(message, manifest)
    store_probe(message, _readable(model_dir, default) | {number: artifact})

    def write_config(folder: Path) -> None:
        if number == 1 and manifest.config:
            labels = "".join(f"{label}\n" for label in manifest.config.labels)
            write_atomically(folder / LABELS_FILE, labels.encode())
        for file, array in files.items():
            put(np.ascontiguousarray(array).tobytes(), folder / WARMUP / file)
        _write_config(folder, message, [*default, number])

    if new:
        with _staging_beside(model_dir.parent) as staging:
            (staging / "1").mkdir()
            _write_version(staging / "1", artifact, message)
            write_config(staging)
            _rename(staging, model_dir)
        return model_dir / "1"
    with _staging(model_dir) as staging:
        _write_version(staging, artifact, message)
        _rename(staging, model_dir / str(number))
    try:
        write_config(model_dir)
    except BaseException:  # the policy in config.pbtxt may serve it already
        remove_version(model_dir, number)
        raise
    return model_dir / str(number)


def check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise PublishError(f"model name: expected letters, digits, _ and -, found {name!r}")
    if len(name) > MOST_LETTERS:
        raise PublishError(f"model name: expected at most {MOST_LETTERS} letters, found {len(name)}")


def serve(model_dir: Path, served: Sequence[int]) -> None:
    """Serves exactly these versions; the highest is the default."""
    with locked(model_dir.parent):
        _write_config(model_dir, read_config(model_dir), served)


def versions(model_dir: Path) -> list[int]:
    """Ascending. Ignores other folders, leading zeros and what needs over 63 bits."""
    names = (path.name for path in model_dir.iterdir() if path.is_dir())
    return sorted(int(name) for name in names if re.fullmatch("[1-9][0-9]*", name) and int(name) < 1 << 63)


def is_published(model_dir: Path) -> bool:
    """Whether this project has written it; an ensemble or a foreign model has neither manifest nor `model_config`."""
    try:
        manifests = [model_dir / str(number) / MANIFEST_FILE for number in versions(model_dir)]
        return any(path.exists() for path in manifests) or b'"model_config"' in (model_dir / CONFIG_FILE).read_bytes()
    except OSError:
        return False


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
    try:
        repository.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise PublishError(f"{repository}: expected a model repository, found a file") from error
    with naming(repository):
        file = (repository / name).open("wb")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_config(model_dir: Path) -> pb.ModelConfig:
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as pb

    path = model_dir / CONFIG_FILE
    try:
        message = text_format.Parse(path.read_text(), pb.ModelConfig())
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise PublishError(f"{path}: expected the config of a published model, found {reason(error)}") from error
    if not message.input or not message.output:
        raise PublishError(f"{path}: expected the config of a published model, found no input or no output")
    return message


def check_same_contract(model_dir: Path, message: pb.ModelConfig, manifest: Manifest) -> None:
    """Raises PublishError for other tensors, other classes or another kind of file: clients read these once."""
    if manifest.config is None:
        _check_same_tensors(model_dir, message, manifest)
    else:
        _check_same_classes(model_dir, message, manifest.config)
    _check_kind(model_dir, message, manifest)


def _check_same_tensors(model_dir: Path, held: pb.ModelConfig, manifest: Manifest) -> None:
    if "model_config" in held.parameters:
        raise PublishError(f"{model_dir}: expected a foreign model, found exports; publish it under another --name")
    message = new_config(held.name, manifest, Serving())
    for kind in ("input", "output"):
        old, new = ([(t.name, t.data_type, _shape(t)) for t in getattr(each, kind)] for each in (held, message))
        if old != new:
            raise PublishError(f"{model_dir}: expected the {kind}s {old}, found {new}; publish it under another --name")
    if bool(held.max_batch_size) != bool(message.max_batch_size):
        raise PublishError(
            f"{model_dir}: expected max_batch_size {held.max_batch_size}, found {message.max_batch_size}; "
            "publish it under another --name"
        )


def _shape(tensor: pb.ModelInput | pb.ModelOutput) -> list[int]:
    """The file's shape; clients see `dims`."""
    return [*(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)]


def _check_same_classes(model_dir: Path, message: pb.ModelConfig, config: ModelConfig) -> None:
    path = model_dir / LABELS_FILE
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


def _shown(labels: Sequence[str]) -> str:
    return ", ".join(label if label.isprintable() else ascii(label) for label in labels)


def _check_kind(model_dir: Path, message: pb.ModelConfig, manifest: Manifest) -> None:
    expected = PLAN_FILE if engine_of(message) == "tensorrt" else ONNX_FILE
    if manifest.file != expected:
        raise PublishError(f"{model_dir}: expected a {expected}, found a {manifest.file}")


def _write_config(model_dir: Path, message: pb.ModelConfig, served: Sequence[int]) -> None:
    serve_versions(message, served, versions(model_dir))
    if engine_of(message) == "tensorrt":
        set_limits(message, [read_manifest(model_dir / str(number) / MANIFEST_FILE) for number in served])
    describe(message, read_manifest(model_dir / str(max(served)) / MANIFEST_FILE))
    store_probe(message, _readable(model_dir, served))
    write_atomically(model_dir / CONFIG_FILE, to_text(message).encode())


def _readable(model_dir: Path, served: Sequence[int]) -> dict[int, Artifact]:
    """Skips broken versions: they must not stop a new version."""
    found = {}
    for number in sorted(served):
        with suppress(PublishError):
            artifact = open_version(model_dir / str(number))
            _ = artifact.sample
            found[number] = artifact
    return found


def _write_version(folder: Path, artifact: Artifact, message: pb.ModelConfig) -> None:
    """With a config, which a supervisor reads if the model's own is broken."""
    write_atomically(folder / CONFIG_FILE, to_text(message).encode())
    for place, content in artifact.contents.items():
        put(content, folder / place)
    write_atomically(folder / MANIFEST_FILE, artifact.manifest.to_json())
    written = read_version(folder)
    if written.manifest.file == ONNX_FILE:
        replay(written)


@contextmanager
def _staging(parent: Path, prefix: str = STAGING) -> Iterator[Path]:
    """A folder on the repository's file system."""
    with naming(parent):
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
