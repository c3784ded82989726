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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from common.files import naming, reason, write_atomically, writing
from common.repository import (
    CONFIG_FILE,
    LABELS_FILE,
    MANIFEST_FILE,
    ONNX_FILE,
    PLAN_FILE,
    Damaged,
    is_ours,
    labels_text,
    read_labels,
    served_versions,
    versions,
)
from common.repository import read_config as repository_config
from export.errors import PublishError
from export.publishing.artifact import Artifact, open_version, read_version
from export.publishing.config_parameters import Version
from export.publishing.empty_inputs import as_line, never_empty
from export.publishing.manifest import Manifest
from export.publishing.new_config import engine_of, image_shape, new_config, to_text
from export.publishing.picture_config import PictureConfig
from export.publishing.replay import replay
from export.publishing.sidecar import put
from export.publishing.triton_config import Model, Serving, config_pbtxt
from export.publishing.warm_up import warm_up_files
from models.networks.config import ModelConfig

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

LOCK_FILE = ".lock"
STAGING = ".publishing-"
MOST_LETTERS = 200  # of a model's name; a file system takes 255
WARMUP = "warmup"  # Triton's folder of inputs


def publish(
    repository: Path,
    name: str,
    artifact: Artifact,
    serving: Serving | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """Publishes the next version and serves it beside the former default; returns its folder.

    `say` is told if the file ends ONNX Runtime's process on inputs without elements.

    An existing config.pbtxt keeps what `serving` does not set, except TF32 and TensorRT's batch sizes, which follow the
    served versions. Raises PublishError, also for an ONNX file that does not answer its sample.
    """
    check_name(name)
    model_dir, serving, manifest = repository / name, serving or Serving(), artifact.manifest
    with locked(repository), writing(model_dir):
        engine, held, present, default = str(serving.engine or "onnxruntime"), None, list[int](), list[int]()
        if model_dir.is_dir():
            held, present = read_config(model_dir), versions(model_dir)
            engine, default = engine_of(held), served_versions(held, present)[-1:]
            _check_next(model_dir, held, manifest, serving)
        _check_kind(model_dir, engine, manifest)
        present.append(1 + max(present, default=0))
        model = _model(model_dir, engine, present, default, Version(manifest, artifact.sample))
        return _add(model_dir, artifact, model, config_pbtxt(model, serving, held), say)


def _check_next(model_dir: Path, held: pb.ModelConfig, manifest: Manifest, serving: Serving) -> None:
    check_same_contract(model_dir, held, manifest)
    if serving.engine and serving.engine != engine_of(held):
        raise PublishError(
            f"{model_dir}: expected a model for {serving.engine}, found a model for {engine_of(held)}; "
            "publish it under another --name"
        )


def _model(
    model_dir: Path, engine: str, present: Sequence[int], served: Sequence[int], new: Version | None = None
) -> Model:
    """`new`: the last of `present`, served beside `served`.

    A broken version is left out: it must not stop a new version. Raises PublishError for a broken default, and for any
    broken TensorRT engine, as the batch sizes of all count.
    """
    numbers = sorted({*served, *(present[-1:] if new else ())})
    found: dict[int, Version] = {}
    for number in numbers:
        try:
            found[number] = new if new and number == present[-1] else _version(model_dir / str(number))
        except PublishError:
            if engine == "tensorrt" or number == numbers[-1]:
                raise
    return Model(model_dir.name, present, numbers, found)


def _version(folder: Path) -> Version:
    artifact, sample = open_version(folder), None
    with suppress(PublishError):
        sample = artifact.sample
    return Version(artifact.manifest, sample)


def _add(
    model_dir: Path, artifact: Artifact, model: Model, message: pb.ModelConfig, say: Callable[[str], None]
) -> Path:
    """The version first: Triton refuses a config that names a missing version."""
    number, text = model.present[-1], to_text(message).encode()

    def write_config(folder: Path) -> None:
        if number == 1 and artifact.manifest.config:
            write_atomically(folder / LABELS_FILE, labels_text(artifact.manifest.config.labels).encode())
        for file, array in warm_up_files(message, number, artifact.sample.inputs).items():
            put(np.ascontiguousarray(array).tobytes(), folder / WARMUP / file)
        write_atomically(folder / CONFIG_FILE, text)

    if not model_dir.is_dir():
        with _staging_beside(model_dir.parent) as staging:
            (staging / "1").mkdir()
            (staging / "1").chmod(0o755)  # as `staging`, whatever the umask
            _write_version(staging / "1", artifact, text, say)
            write_config(staging)
            _rename(staging, model_dir)
        return model_dir / "1"
    with _staging(model_dir) as staging:
        _write_version(staging, artifact, text, say)
        _rename(staging, model_dir / str(number))
    try:
        write_config(model_dir)
    except BaseException:  # the policy in config.pbtxt may serve it already
        remove_version(model_dir, number)
        raise
    return model_dir / str(number)


def check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise PublishError(f"model name: expected letters, digits, _ and -, found {name!r}: --name gives another")
    if len(name) > MOST_LETTERS:
        raise PublishError(f"model name: expected at most {MOST_LETTERS} letters, found {len(name)}")


def serve(model_dir: Path, served: Sequence[int]) -> None:
    """Serves exactly these versions; the highest is the default."""
    with locked(model_dir.parent):
        held = read_config(model_dir)
        model = _model(model_dir, engine_of(held), versions(model_dir), served)
        message = config_pbtxt(model, Serving(), held)
        write_atomically(model_dir / CONFIG_FILE, to_text(message).encode())


def is_published(model_dir: Path) -> bool:
    """Whether this project has written it; an ensemble or a foreign model has neither manifest nor `model_config`."""
    try:
        return is_ours(model_dir, versions(model_dir)) or b'"model_config"' in (model_dir / CONFIG_FILE).read_bytes()
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
def no_file(repository: Path) -> Iterator[None]:
    """Turns the system's errors of a file in the place of `repository`, or above it, into PublishError."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise PublishError(f"{repository}: expected a model repository, found a file") from error


@contextmanager
def locked(repository: Path, name: str = LOCK_FILE) -> Iterator[None]:
    """The lock ends with its process. Creates a missing repository."""
    with no_file(repository):
        repository.mkdir(parents=True, exist_ok=True)
    with naming(repository):
        file = (repository / name).open("wb")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_config(model_dir: Path) -> pb.ModelConfig:
    """Raises PublishError."""
    path = model_dir / CONFIG_FILE
    try:
        message = repository_config(path)
        if not message.input or not message.output:
            raise Damaged(path, "inputs and outputs", "no input or no output")
    except Damaged as error:
        raise PublishError(f"{path}: expected the config of a published model, found {error.found}") from error
    return message


def check_same_contract(model_dir: Path, message: pb.ModelConfig, manifest: Manifest) -> None:
    """Raises PublishError for other tensors, other classes or another kind of file: clients read these once."""
    if manifest.config is None:
        _check_same_tensors(model_dir, message, manifest)
    else:
        _check_same_classes(model_dir, message, manifest.config)
    _check_kind(model_dir, engine_of(message), manifest)


def _check_same_tensors(model_dir: Path, held: pb.ModelConfig, manifest: Manifest) -> None:
    if "model_config" in held.parameters:
        raise PublishError(f"{model_dir}: expected a foreign model, found exports; publish it under another --name")
    message = new_config(held.name, manifest, engine_of(held))
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


def _check_same_classes(model_dir: Path, message: pb.ModelConfig, config: ModelConfig | PictureConfig) -> None:
    try:
        labels = read_labels(model_dir)
    except (OSError, UnicodeDecodeError) as error:
        path = model_dir / LABELS_FILE
        raise PublishError(f"{path}: expected the classes of a published model, found {reason(error)}") from error
    shape = image_shape(message)
    if (shape, labels) != (config.input_shape, config.labels):
        raise PublishError(
            f"{model_dir}: expected a model for {config.input_shape} images and classes {_shown(config.labels)}, "
            f"found {shape} and {_shown(labels)}; publish it under another --name"
        )


def _shown(labels: Sequence[str]) -> str:
    return ", ".join(label if label.isprintable() else ascii(label) for label in labels)


def _check_kind(model_dir: Path, engine: str, manifest: Manifest) -> None:
    expected = PLAN_FILE if engine == "tensorrt" else ONNX_FILE
    if manifest.file != expected:
        raise PublishError(f"{model_dir}: expected a {expected}, found a {manifest.file}")


def _write_version(folder: Path, artifact: Artifact, config: bytes, say: Callable[[str], None]) -> None:
    """With the model's `config`, which a supervisor reads if the model's own is broken."""
    write_atomically(folder / CONFIG_FILE, config)
    for place, content in artifact.contents.items():
        put(content, folder / place)
    write_atomically(folder / MANIFEST_FILE, artifact.manifest.to_json())
    written = read_version(folder)
    if written.manifest.file == ONNX_FILE:
        replay(written)
        if never := never_empty(written):
            write_atomically(folder / MANIFEST_FILE, artifact.telling(never_empty=never).manifest.to_json())
            say(as_line(never))


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
