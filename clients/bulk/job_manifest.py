"""The plan of a bulk run: a `Job` with its `Part`s. The first run stores it in the output folder, later runs read it.

    DIR/_job.json               the model, the inputs, the number of parts
    DIR/_parts-HASH.jsonl       a part per line; read line by line, so memory does not grow with the job
    DIR/part-00000007.parquet   the answers of part 7, complete or absent

The answers of a part are deterministic, and their file appears by a rename. So a run after a kill does only the missing
parts, and two runs at once do no harm. Parquet readers skip names with a leading underscore.
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
from common.plurals import counted

JOB_FILE = "_job.json"

Kind = Literal["pictures", "tar", "parquet", "idx"]


class JobMismatch(ClientError):
    """The output folder holds another job, or an input differs from the plan."""


@dataclass(frozen=True)
class Part:
    """A share of the inputs: picture files, a tar, row groups of a Parquet file, or rows of an idx file."""

    number: int
    kind: Kind
    paths: tuple[str, ...]  # absolute or with a protocol; several only for kind "pictures"
    start: int = 0  # first row group of a Parquet file, first row of an idx file
    stop: int = 0  # exclusive
    first_row: int = 0  # in the file
    rows: int | None = None  # None for a tar, whose rows are unknown until its end
    file_bytes: int | None = None  # size of the file at planning; None if unknown

    @property
    def file_name(self) -> str:
        return f"part-{self.number:08d}.parquet"

    def to_line(self) -> str:
        return json.dumps(asdict(self))  # ASCII, because file names may not be UTF-8

    @staticmethod
    def from_line(line: str) -> Part:
        content = json.loads(line)
        return Part(**content | {"paths": tuple(content["paths"])})


@dataclass(frozen=True)
class Settings:
    """The settings of a run that change its answers. All runs into an output folder must have the same."""

    inputs: tuple[str, ...]  # absolute paths or URLs
    model_file: str
    model: str
    version: str
    sha256: str  # of the model's file
    image_column: str  # of Parquet files
    id_column: str  # which may be missing
    part_rows: int | None  # None: a number by the kind of the input


@dataclass(frozen=True)
class Job:
    """`output`: the folder or URL; `parts_file`: name of the list of parts in it; `parts`: their number."""

    settings: Settings
    output: str
    parts_file: str
    parts: int


def absolute(path: str) -> str:
    """The absolute path, or the URL with its protocol. Raises ClientError for an empty path."""
    if not path:  # else it would mean the current folder
        raise ClientError("expected a path or URL, found an empty one")
    filesystem, inner = url_to_fs(path)
    return inner if isinstance(filesystem, LocalFileSystem) else str(filesystem.unstrip_protocol(inner))


class Output:
    """The output folder, local or a URL of fsspec."""

    def __init__(self, path: str) -> None:
        self.path = absolute(path)
        self._filesystem, self._inner = url_to_fs(path)

    def make(self) -> None:
        self._filesystem.makedirs(self._inner, exist_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Writes a file that appears complete: on disk by flush and rename, on object storage by a single upload."""
        if not isinstance(self._filesystem, LocalFileSystem):
            self._filesystem.pipe_file(f"{self._inner}/{name}", data)
            return
        write_atomically(Path(self._inner, name), data)

    def copy_in(self, source: Path, name: str) -> None:
        """As `write`, with the content of a local file."""
        if not isinstance(self._filesystem, LocalFileSystem):
            self._filesystem.put_file(str(source), f"{self._inner}/{name}")
            return
        with source.open("rb") as content, atomic_file(Path(self._inner, name)) as file:
            shutil.copyfileobj(content, file)

    def read(self, name: str) -> bytes | None:
        """None if there is no such file."""
        try:
            return bytes(self._filesystem.cat_file(f"{self._inner}/{name}"))
        except FileNotFoundError:
            return None

    def open(self, name: str) -> IO[bytes]:
        file: IO[bytes] = self._filesystem.open(f"{self._inner}/{name}", "rb")
        return file

    def finished_parts(self) -> set[int]:
        """The numbers of the parts that have a file."""
        names = (str(name).rpartition("/")[2] for name in self._filesystem.ls(self._inner, detail=False))
        return {int(match[1]) for name in names if (match := re.fullmatch(r"part-(\d+)\.parquet", name))}


def open_job(output: Output, settings: Settings, plan: Iterable[Part]) -> Job:
    """Returns the job that is stored in the output folder. A new folder first gets a job with the parts of `plan`.

    Raises JobMismatch if the stored settings differ from `settings`, or the folder holds something else.
    """
    if output.read(JOB_FILE) is None:
        _write_job(output, settings, plan)
    try:
        stored = json.loads(output.read(JOB_FILE) or b"{}")
        stored_settings = Settings(**stored["settings"] | {"inputs": tuple(stored["settings"]["inputs"])})
        job = Job(stored_settings, output.path, stored["parts_file"], stored["parts"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise JobMismatch(f"{output.path}/{JOB_FILE}: expected the job of a bulk run, found {error!r}") from error
    for field in fields(Settings):
        expected, given = getattr(stored_settings, field.name), getattr(settings, field.name)
        if expected != given:
            raise JobMismatch(f"{output.path}: expected its job's {field.name} {expected!r}, found {given!r}")
    return job


def _write_job(output: Output, settings: Settings, plan: Iterable[Part]) -> None:
    """Writes the list of parts, then the job, which names the list. Two planners at once write the same files."""
    digest, parts = hashlib.sha256(), 0
    with tempfile.TemporaryDirectory() as folder:
        parts_list = Path(folder) / "parts"
        with parts_list.open("wb") as file:
            for part in plan:
                line = part.to_line().encode() + b"\n"
                file.write(line)
                digest.update(line)
                parts += 1
        output.make()
        finished = output.finished_parts()
        if finished and output.read(JOB_FILE) is None:  # another planner may have written the job meanwhile
            raise JobMismatch(
                f"{output.path}: expected {JOB_FILE} beside part files, found {len(finished)} of an unknown job"
            )
        name = f"_parts-{digest.hexdigest()[:16]}.jsonl"
        output.copy_in(parts_list, name)
    job = {"settings": asdict(settings), "parts_file": name, "parts": parts}
    output.write(JOB_FILE, json.dumps(job, indent=2).encode())


def parts_to_do(output: Output, job: Job, share: tuple[int, int]) -> Iterator[Part]:
    """Yields the parts of a share, (index, count), that have no file yet.

    Raises JobMismatch at the end of an incomplete list.
    """
    finished, (index, count) = output.finished_parts(), share
    number = -1
    with output.open(job.parts_file) as lines:
        for number, line in enumerate(lines):
            if number % count == index and number not in finished:
                yield Part.from_line(line.decode())
    if number + 1 != job.parts:
        raise JobMismatch(f"{output.path}/{job.parts_file}: expected {counted(job.parts, 'part')}, found {number + 1}")
