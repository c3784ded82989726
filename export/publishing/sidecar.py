"""A model outside a repository: OUT.onnx, and beside it the manifest OUT.json and the sample OUT.npz of its version."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from common.files import naming, writing
from common.repository import SAMPLE_FILE
from common.sample import is_sample
from export.errors import PublishError
from export.publishing.artifact import Artifact, checked
from export.publishing.manifest import read_manifest


def read_beside(file: Path) -> Artifact:
    """Raises PublishError."""
    manifest = read_manifest(file.with_suffix(".json"))
    return checked(manifest, _places(file, manifest.file, manifest.files))


def write_beside(file: Path, artifact: Artifact) -> None:
    with staged(file) as path:
        lay(path, artifact)


def lay(path: Path, artifact: Artifact) -> None:
    """Writes what is not there yet: weights keep the place that the model names."""
    places = _places(path, artifact.manifest.file, artifact.contents)
    for place, content in artifact.contents.items():
        put(content, places[place])
    put(artifact.manifest.to_json(), path.with_suffix(".json"))


def put(content: bytes | Path, path: Path) -> None:
    """Writes and flushes."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o755)  # a server may run as another user, whatever the umask
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content != path:
        shutil.copyfile(content, path)
    path.chmod(0o644)
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """Yields the model's path in a new folder, whose files all move beside `output` if the block succeeds.

    A failure, Ctrl-C or SIGTERM leaves nothing; what SIGKILL left, the next run for `output` removes. Raises
    FileExistsError if a file that is not of an export would be replaced by the manifest, the sample or the weights.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    _check_replaced(output)
    prefix = f".{output.name}.vitbn-"
    for left in output.parent.glob(f"{glob.escape(prefix)}*"):
        with suppress(FileNotFoundError), _locked(left) as stale:  # its own process may remove it just now
            if stale:
                shutil.rmtree(left, ignore_errors=True)
    with _ended_by_sigterm():
        with naming(output):
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=output.parent))
        try:
            with _locked(folder), writing(output):
                yield folder / output.name
            for path in sorted(folder.iterdir(), key=lambda path: path.name == output.name):  # the model last
                path.replace(output.parent / path.name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _check_replaced(output: Path) -> None:
    """Raises FileExistsError for a device or a pipe in the model's place, or a stranger's file in another's."""
    if output.exists() and not output.is_file():
        raise FileExistsError(f"{output}: expected a file or nothing, found something else")
    from export.compiler.graph.files import data_file

    manifest, sample, weights = output.with_suffix(".json"), output.with_suffix(".npz"), data_file(output)
    known: Iterable[str] = ()
    if manifest.exists():
        try:
            known = read_manifest(manifest).files
        except PublishError as error:
            raise FileExistsError(f"{manifest}: expected nothing or the manifest of an export, found a file") from error
    if sample.exists() and not is_sample(sample):
        raise FileExistsError(f"{sample}: expected nothing or the sample of an export, found a file")
    if weights.exists() and weights.name not in known and weights.resolve() not in _weights_of(output):
        raise FileExistsError(f"{weights}: expected nothing or the weights of an export, found a file")


def _weights_of(model: Path) -> list[Path]:
    """Of an ONNX file that is replaced: they have no other use."""
    from export.compiler.errors import ForeignError
    from export.compiler.graph.files import read_model, weight_files

    try:
        return [path.resolve() for path in weight_files(read_model(model))]
    except (ForeignError, OSError):
        return []


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether no other process works in the folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield _lock(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that it cleans up."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _places(file: Path, model: str, names: Iterable[str]) -> dict[str, Path]:
    known = {model: file, SAMPLE_FILE: file.with_suffix(".npz")}
    return {name: known.get(name, file.parent / name) for name in names}
