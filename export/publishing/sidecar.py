"""A model outside a repository: the file OUT.onnx with two sidecars, the manifest OUT.json and the sample OUT.npz.

In: an artifact and the path of the model; or that path. Out: the files, written all or none; or the artifact.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from common.files import ended_by_signal, naming, naming_if_unnamed, swept_folder
from common.repository import SAMPLE_FILE
from common.sample import is_sample
from export.errors import PublishError
from export.publishing.artifact import Artifact, artifact_of_files
from export.publishing.manifest import read_manifest


def read_with_sidecars(file: Path) -> Artifact:
    """Raises PublishError if a sidecar is missing, or a file has another hash than in the manifest."""
    manifest = read_manifest(file.with_suffix(".json"))
    return artifact_of_files(manifest, _paths(file, manifest.file, manifest.files))


def write_with_sidecars(file: Path, artifact: Artifact) -> None:
    """Writes all files or none. Raises FileExistsError as `staged`."""
    with staged(file) as path:
        write_contents(path, artifact)


def write_contents(path: Path, artifact: Artifact) -> None:
    """Writes model, weights and sidecars, except files that are in their place already.

    `path`: of the model. Weights are written under the names by which the model refers to them.
    """
    paths = _paths(path, artifact.manifest.file, artifact.contents)
    for place, content in artifact.contents.items():
        write_flushed(content, paths[place])
    write_flushed(artifact.manifest.to_json(), path.with_suffix(".json"))


def write_flushed(content: bytes | Path, path: Path) -> None:
    """Writes bytes, or copies a file, readable by all users, and flushes to the disk."""
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True)
        path.parent.chmod(0o755)  # a server may run as another user, whatever the umask
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content != path:
        with content.open("rb") as source, path.open("wb") as target:  # a full disk would have copyfile name `content`
            shutil.copyfileobj(source, target)
    path.chmod(0o644)
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """Yields a path for the model in a staging folder, whose files all move to the folder of `output` on success.

    A failure or a signal removes the staging folder; after SIGKILL the next run for `output` does. Raises
    FileExistsError if manifest, sample or weights would replace a file that no export has written.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    check_replaced(output)
    with ended_by_signal(), ExitStack() as stack:
        with naming(output):
            folder = stack.enter_context(swept_folder(output.parent, f".{output.name}.vitbn-"))
        with naming_if_unnamed(output):
            yield folder / output.name
        for path in sorted(folder.iterdir(), key=lambda path: path.name == output.name):  # the model last
            path.replace(output.parent / path.name)


def check_replaced(output: Path) -> None:
    """Raises FileExistsError for a device or a pipe at `output`, and for other files that no export has written."""
    if output.exists() and not output.is_file():
        raise FileExistsError(f"{output}: expected a file or nothing, found something else")
    from export.compiler.graph.files import data_file

    manifest, sample, weights = output.with_suffix(".json"), output.with_suffix(".npz"), data_file(output)
    listed: Iterable[str] = ()
    if manifest.exists():
        try:
            listed = read_manifest(manifest).files
        except PublishError as error:
            raise FileExistsError(f"{manifest}: expected nothing or the manifest of an export, found a file") from error
    if sample.exists() and not is_sample(sample):
        raise FileExistsError(f"{sample}: expected nothing or the sample of an export, found a file")
    if weights.exists() and weights.name not in listed and weights.resolve() not in _weights_of(output):
        raise FileExistsError(f"{weights}: expected nothing or the weights of an export, found a file")


def _weights_of(model: Path) -> list[Path]:
    """The files with weights that the ONNX file `model` refers to; none if it cannot be read.

    They may be replaced with the model, because no other file uses them.
    """
    from export.compiler.errors import ForeignError
    from export.compiler.graph.files import read_model, weight_files

    try:
        return [path.resolve() for path in weight_files(read_model(model))]
    except (ForeignError, OSError):
        return []


def _paths(file: Path, model: str, names: Iterable[str]) -> dict[str, Path]:
    """Path in a version's folder -> path of the same file outside a repository, where the model is at `file`."""
    renamed = {model: file, SAMPLE_FILE: file.with_suffix(".npz")}
    return {name: renamed.get(name, file.parent / name) for name in names}
