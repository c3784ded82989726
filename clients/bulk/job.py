"""A run's plan: a `Job` with its `Part`s, fixed by the first run and stored in the output folder.

    DIR/_job.json               the model, the inputs, the number of parts
    DIR/_parts-HASH.jsonl       one part per line; streamed, so memory does not grow with the job
    DIR/part-00000007.parquet   the answers of part 7, complete or absent

A part is deterministic and its file appears by a rename: a killed run continues with the missing parts, and two runs at
once do no harm. Parquet readers skip names with a leading underscore.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Literal

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from clients.errors import ClientError
from common.files import atomic_file, write_atomically

JOB_FILE = "_job.json"

Kind = Literal["pictures", "tar", "parquet", "idx"]


class JobMismatch(ClientError):
    pass


@dataclass(frozen=True)
class Part:
    """Picture files, a tar, row groups of a Parquet file, or rows of an idx file."""

    number: int
    kind: Kind
    paths: tuple[str, ...]  # absolute or with a protocol; several only for kind "pictures"
    start: int = 0  # first row group or row
    stop: int = 0  # exclusive
    first_row: int = 0  # of the Parquet file's rows
    rows: int | None = None  # None for a tar, unknown until its end
    file_bytes: int | None = None  # at planning; None if unknown

    @property
    def file_name(self) -> str:
        return f"part-{self.number:08d}.parquet"

    def to_line(self) -> str:
        return json.dumps(asdict(self))  # ASCII: file names may not be UTF-8

    @staticmethod
    def from_line(line: str) -> Part:
        content = json.loads(line)
        return Part(**content | {"paths": tuple(content["paths"])})


@dataclass(frozen=True)
class Settings:
    """What a run depends on; two runs into one folder must have the same."""

    inputs: tuple[str, ...]  # absolute
    model_file: str
    model: str
    version: str
    sha256: str  # of the model's file
    image_column: str
    id_column: str
    part_rows: int | None


@dataclass(frozen=True)
class Job:
    settings: Settings
    output: str
    parts_file: str
    parts: int


def absolute(path: str) -> str:
    """The absolute path, or the URL with its protocol. Raises ClientError for an empty path."""
    if not path:  # else the current folder
        raise ClientError("expected a path or URL, found an empty one")
    filesystem, inner = url_to_fs(path)
    return inner if isinstance(filesystem, LocalFileSystem) else str(filesystem.unstrip_protocol(inner))


class Output:
    """A folder or fsspec URL."""

    def __init__(self, path: str) -> None:
        self.path = absolute(path)
        self._filesystem, self._inner = url_to_fs(path)

    def make(self) -> None:
        self._filesystem.makedirs(self._inner, exist_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Writes atomically, as `copy_in` does: on disk it flushes and renames, on object storage it uploads once."""
        if not isinstance(self._filesystem, LocalFileSystem):
            self._filesystem.pipe_file(f"{self._inner}/{name}", data)
            return
        write_atomically(Path(self._inner, name), data)

    def copy_in(self, source: Path, name: str) -> None:
        if not isinstance(self._filesystem, LocalFileSystem):
            self._filesystem.put_file(str(source), f"{self._inner}/{name}")
            return
        with source.open("rb") as content, atomic_file(Path(self._inner, name)) as file:
            shutil.copyfileobj(content, file)

    def read(self, name: str) -> bytes | None:
        try:
            return bytes(self._filesystem.cat_file(f"{self._inner}/{name}"))
        except FileNotFoundError:
            return None

    def open(self, name: str) -> IO[bytes]:
        file: IO[bytes] = self._filesystem.open(f"{self._inner}/{name}", "rb")
        return file

    def done(self) -> set[int]:
        names = (str(name).rpartition("/")[2] for name in self._filesystem.ls(self._inner, detail=False))
        return {int(match[1]) for name in names if (match := re.fullmatch(r"part-(\d+)\.parquet", name))}


def open_job(output: Output, settings: Settings, plan: Iterable[Part]) -> Job:
    """Returns the job in the output folder. For a new folder it first stores a job with the parts of `plan`.

    Raises JobMismatch if the stored settings differ from `settings`.
    """
    if output.read(JOB_FILE) is None:
        _write_job(output, settings, plan)
    try:
        stored = json.loads(output.read(JOB_FILE) or b"{}")
        before = Settings(**stored["settings"] | {"inputs": tuple(stored["settings"]["inputs"])})
        job = Job(before, output.path, stored["parts_file"], stored["parts"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise JobMismatch(f"{output.path}/{JOB_FILE}: expected the job of a bulk run, found {error!r}") from error
    for field in fields(Settings):
        if (was := getattr(before, field.name)) != (now := getattr(settings, field.name)):
            raise JobMismatch(f"{output.path}: expected its job's {field.name} {was!r}, found {now!r}")
    return job


def _write_job(output: Output, settings: Settings, plan: Iterable[Part]) -> None:
    """Writes the list of parts, then the job that names the list. Two planners at once write the same files."""
    digest, parts = hashlib.sha256(), 0
    with tempfile.TemporaryDirectory() as folder:
        listed = Path(folder) / "parts"
        with listed.open("wb") as file:
            for part in plan:
                line = part.to_line().encode() + b"\n"
                file.write(line)
                digest.update(line)
                parts += 1
        output.make()
        if (found := output.done()) and output.read(JOB_FILE) is None:  # another planner may have been faster
            raise JobMismatch(
                f"{output.path}: expected {JOB_FILE} beside part files, found {len(found)} of an unknown job"
            )
        name = f"_parts-{digest.hexdigest()[:16]}.jsonl"
        output.copy_in(listed, name)
    job = {"settings": asdict(settings), "parts_file": name, "parts": parts}
    output.write(JOB_FILE, json.dumps(job, indent=2).encode())


def parts_to_do(output: Output, job: Job, share: tuple[int, int]) -> Iterator[Part]:
    """Yields the parts of a share, (index, count), without a file; raises JobMismatch after an incomplete list."""
    done, (index, count) = output.done(), share
    number = -1
    with output.open(job.parts_file) as lines:
        for number, line in enumerate(lines):
            if number % count == index and number not in done:
                yield Part.from_line(line.decode())
    if number + 1 != job.parts:
        raise JobMismatch(f"{output.path}/{job.parts_file}: expected {job.parts} parts, found {number + 1}")
