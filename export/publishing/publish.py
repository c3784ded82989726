"""Writes the model repository: MODEL/config.pbtxt, MODEL/labels.txt, VERSION/model.onnx and VERSION/manifest.json.

In: an artifact. Out: a new version. It is written into a staging folder, where an ONNX file must answer its sample, and
published by a rename, so that readers see all of it or nothing. A version never changes afterwards.
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

from common.files import naming, naming_if_unnamed, regular, write_atomically
from common.repository import (
    CONFIG_FILE,
    LABELS_FILE,
    MANIFEST_FILE,
    ONNX_FILE,
    Damaged,
    has_manifest,
    labels_text,
    served_versions,
    versions,
)
from common.repository import read_config as repository_config
from export.errors import PublishError
from export.publishing.artifact import Artifact, open_version, read_version
from export.publishing.build_config_pbtxt import Model, Serving, config_pbtxt
from export.publishing.config_parameters import Version
from export.publishing.empty_inputs import as_line, never_empty
from export.publishing.manifest import Manifest
from export.publishing.new_config import engine_of, to_text
from export.publishing.replay_sample import replay
from export.publishing.same_contract import check_kind, check_same_contract
from export.publishing.sidecar import write_flushed
from export.publishing.warm_up import warm_up_files

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as pb

LOCK_FILE = ".lock"
STAGING = ".publishing-"
NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_-]*")
MOST_LETTERS = 200  # of a model's name; a file system takes 255
WARMUP = "warmup"  # the folder in which Triton looks for the inputs of a warm-up
OTHER_NAME = "publish it under another --name"


def publish(
    repository: Path,
    name: str,
    artifact: Artifact,
    serving: Serving | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """Publishes the next version of a model; config.pbtxt then serves it and the former default. Returns its folder.

    An existing config.pbtxt keeps what `serving` does not set, except TF32 and TensorRT's batch sizes, which follow the
    served versions. `say`: gets a line if inputs without elements crash ONNX Runtime. Raises PublishError, also for an
    ONNX file that does not answer its sample.
    """
    check_name(name)
    model_dir, serving, manifest = repository / name, serving or Serving(), artifact.manifest
    with locked(repository), naming_if_unnamed(model_dir):
        engine, config, present, default = str(serving.engine or "onnxruntime"), None, list[int](), list[int]()
        if model_dir.is_dir():
            config, present = read_config(model_dir), versions(model_dir)
            engine, default = engine_of(config), served_versions(config, present)[-1:]
            _check_next(model_dir, config, manifest, serving)
        check_kind(model_dir, engine, manifest)
        present.append(1 + max(present, default=0))
        model = _model(model_dir, engine, present, default, Version(manifest, artifact.sample))
        return _add(model_dir, artifact, model, config_pbtxt(model, serving, config), say)


def _check_next(model_dir: Path, config: pb.ModelConfig, manifest: Manifest, serving: Serving) -> None:
    """Raises PublishError if a version with this manifest cannot be the next of the model."""
    try:
        check_same_contract(model_dir, config, manifest)
    except PublishError as error:
        raise PublishError(f"{error}; {OTHER_NAME}") from error
    if serving.engine and serving.engine != engine_of(config):
        engines = f"expected a model for {serving.engine}, found a model for {engine_of(config)}"
        raise PublishError(f"{model_dir}: {engines}; {OTHER_NAME}")


def _model(
    model_dir: Path, engine: str, present: Sequence[int], served: Sequence[int], new: Version | None = None
) -> Model:
    """The model with versions `present`, of which `served` are served, and `new`, which is the last of `present`.

    A damaged version is left out, because it must not prevent a new version. Raises PublishError for a damaged default,
    and for any damaged TensorRT engine, because the batch sizes of all engines count.
    """
    numbers = sorted({*served, *(present[-1:] if new else ())})
    readable: dict[int, Version] = {}
    for number in numbers:
        try:
            readable[number] = new if new and number == present[-1] else _version(model_dir / str(number))
        except PublishError:
            if engine == "tensorrt" or number == numbers[-1]:
                raise
    return Model(model_dir.name, present, numbers, readable)


def _version(folder: Path) -> Version:
    """Manifest and sample; None for a damaged sample. Raises PublishError for a damaged manifest."""
    artifact, sample = open_version(folder), None
    with suppress(PublishError):
        sample = artifact.sample
    return Version(artifact.manifest, sample)


def _add(
    model_dir: Path, artifact: Artifact, model: Model, message: pb.ModelConfig, say: Callable[[str], None]
) -> Path:
    """Writes the last version of `model`, then config.pbtxt: Triton refuses a config that names a missing version.

    Returns the version's folder.
    """
    number, text = model.present[-1], to_text(message).encode()
    version_dir = model_dir / str(number)

    def write_config(folder: Path) -> None:
        if number == 1 and artifact.manifest.config:
            write_atomically(folder / LABELS_FILE, labels_text(artifact.manifest.config.labels).encode())
        for file, array in warm_up_files(message, number, artifact.sample.inputs).items():
            write_flushed(np.ascontiguousarray(array).tobytes(), folder / WARMUP / file)
        _write_config(folder, text)

    if not model_dir.is_dir():
        with _staging_beside(model_dir.parent) as staging:
            (staging / "1").mkdir()
            (staging / "1").chmod(0o755)  # as `staging`, whatever the umask
            _write_version(staging / "1", version_dir, artifact, text, say)
            write_config(staging)
            _rename(staging, model_dir)
        return version_dir
    with _staging(model_dir) as staging:
        _write_version(staging, version_dir, artifact, text, say)
        _rename(staging, version_dir)
    try:
        write_config(model_dir)
    except BaseException:  # the policy in the old config.pbtxt may serve the new version already
        remove_version(model_dir, number)
        raise
    return version_dir


def check_name(name: str) -> None:
    """Raises PublishError for a name of a model that is no safe name of a folder."""
    if not NAME.fullmatch(name):
        raise PublishError(f"model name: expected letters, digits, _ and -, found {name!r}: --name gives another")
    if len(name) > MOST_LETTERS:
        raise PublishError(f"model name: expected at most {MOST_LETTERS} letters, found {len(name)}")


def serve(model_dir: Path, served: Sequence[int]) -> None:
    """Rewrites config.pbtxt so that exactly these versions are served; the highest is the default."""
    with locked(model_dir.parent):
        config = read_config(model_dir)
        model = _model(model_dir, engine_of(config), versions(model_dir), served)
        message = config_pbtxt(model, Serving(), config)
        _write_config(model_dir, to_text(message).encode())


def _write_config(folder: Path, text: bytes) -> None:
    """Writes config.pbtxt and dates it after the model's other files, whose dates may be in the future.

    Triton loads a model again only if the newest date of its files has grown.
    """
    path, dates_ns = folder / CONFIG_FILE, [file.lstat().st_mtime_ns for file in folder.rglob("*")]
    write_atomically(path, text)
    if (newest_ns := max(dates_ns, default=0)) >= path.stat().st_mtime_ns:
        later_ns = newest_ns + 10**9  # some file systems keep whole seconds
        os.utime(path, ns=(later_ns, later_ns))


def is_published(model_dir: Path) -> bool:
    """Whether this project has written the model: a version has a manifest, or config.pbtxt the parameter model_config.

    Ensembles, and models that others have put into the repository, have neither. Raises OSError for an unreadable
    folder, unless its name is none that this project gives, such as lost+found.
    """
    try:
        config = model_dir / CONFIG_FILE
        return has_manifest(model_dir, versions(model_dir)) or b'"model_config"' in regular(config).read_bytes()
    except PermissionError:
        if NAME.fullmatch(model_dir.name):
            raise
        return False
    except OSError:
        return False


def remove_version(model_dir: Path, number: int) -> None:
    """Renames the version before deleting files, so that no server sees half of it. Of a symlink, removes the link."""
    if (model_dir / str(number)).is_symlink():
        (model_dir / str(number)).unlink()
        return
    with _staging(model_dir) as staging:
        _rename(model_dir / str(number), staging)


def remove_model(model_dir: Path) -> None:
    """Renames the model before deleting files, so that no server sees half of it."""
    with _staging_beside(model_dir.parent) as staging:
        _rename(model_dir, staging)


def sweep(repository: Path) -> list[Path]:
    """Removes the files that killed publishers left, and returns their paths."""
    with locked(repository):
        real = repository.resolve()
        leftovers = [*real.parent.glob(f"{STAGING}{real.name}-????????")]
        leftovers += [*real.glob(f"{STAGING}*"), *real.glob(f"*/{STAGING}*")]
        leftovers += real.glob(f"*/.{CONFIG_FILE}.*")  # of write_atomically
        for path in leftovers:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return leftovers


@contextmanager
def expecting_repository(path: Path) -> Iterator[None]:
    """Turns the system's errors about a file at `path`, or in place of a parent folder, into PublishError."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as error:
        raise PublishError(f"{path}: expected a model repository, found a file") from error


@contextmanager
def locked(repository: Path, name: str = LOCK_FILE) -> Iterator[None]:
    """Waits until no other process has this lock of the repository, and creates a missing repository.

    `name`: of the lock's file. The system frees the lock if the process dies.
    """
    with expecting_repository(repository):
        repository.mkdir(parents=True, exist_ok=True)
    with naming(repository):
        file = (repository / name).open("wb")
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_config(model_dir: Path) -> pb.ModelConfig:
    """The message in config.pbtxt. Raises PublishError if it is damaged, of another name, or has no input or output."""
    path = model_dir / CONFIG_FILE
    try:
        message = repository_config(path)
        if not message.input or not message.output:
            raise Damaged(path, "inputs and outputs", "no input or no output")
    except Damaged as error:
        raise PublishError(f"{path}: expected the config of a published model, found {error.found}") from error
    message.name = message.name or model_dir.name  # as Triton reads it
    if message.name != model_dir.name:  # Triton does not load it
        raise PublishError(f"{path}: expected the name {model_dir.name}, found {message.name}")
    return message


def _write_version(
    staging: Path, version_dir: Path, artifact: Artifact, config: bytes, say: Callable[[str], None]
) -> None:
    """Writes the version into `staging`, and checks there that an ONNX file answers its sample.

    `version_dir`: the folder that it gets afterwards. `config`: a copy of the model's config.pbtxt, which a supervisor
    reads if the model's is damaged. Raises PublishError.
    """
    write_atomically(staging / CONFIG_FILE, config)
    for place, content in artifact.contents.items():
        write_flushed(content, staging / place)
    write_atomically(staging / MANIFEST_FILE, artifact.manifest.to_json())
    written = read_version(staging)
    if written.manifest.file == ONNX_FILE:
        source = artifact.contents[ONNX_FILE]
        replay(written, version_dir / ONNX_FILE if isinstance(source, bytes) else source)
        if axes := never_empty(written):
            write_atomically(staging / MANIFEST_FILE, artifact.with_origin(never_empty=axes).manifest.to_json())
            say(as_line(axes))


@contextmanager
def _staging(parent: Path, prefix: str = STAGING) -> Iterator[Path]:
    """Yields a new folder in `parent`, which must be on the repository's file system; removes it afterwards."""
    with naming(parent):
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    path.chmod(0o755)  # mkdtemp makes it private; the server may be another user
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _staging_beside(repository: Path) -> AbstractContextManager[Path]:
    """A staging folder next to the repository: within it, an unsupervised Triton would take every folder for a model.

    Of a link, next to its target: from the link's parent a rename may have to cross file systems. The folder is within
    a mounted repository, which has no neighbour on its file system, and within one whose parent the user may not write.
    """
    real = repository.resolve()
    if os.path.ismount(real) or not os.access(real.parent, os.W_OK):
        return _staging(real)
    return _staging(real.parent, f"{STAGING}{real.name}-")


def _rename(source: Path, target: Path) -> None:
    """Renames and flushes the folder. Raises PublishError."""
    try:
        source.rename(target)
    except OSError as error:
        taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
        obstacle = "something there already" if taken else error.strerror
        raise PublishError(f"{target}: expected to rename {source.name} to it, found {obstacle}") from error
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
