"""A model outside a repository: OUT.onnx, and beside it the manifest OUT.json and the sample OUT.npz of its version."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from export.publishing.artifact import SAMPLE_FILE, Artifact, checked, read_manifest
from models.files import naming, writing


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
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content != path:
        shutil.copyfile(content, path)
    path.chmod(0o644)  # a server may run as another user
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """Yields the model's path in a new folder, whose files all move beside `output` if the block succeeds."""
    output.parent.mkdir(parents=True, exist_ok=True)
    if output.exists() and not output.is_file():  # the rename would replace a device or a pipe
        raise FileExistsError(f"{output}: expected a file or nothing, found something else")
    with naming(output):
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        with writing(output):
            yield folder / output.name
        for path in sorted(folder.iterdir(), key=lambda path: path.name == output.name):  # the model last
            path.replace(output.parent / path.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _places(file: Path, model: str, names: Iterable[str]) -> dict[str, Path]:
    known = {model: file, SAMPLE_FILE: file.with_suffix(".npz")}
    return {name: known.get(name, file.parent / name) for name in names}
