"""Files written whole or not at all, their hashes, and errors that name them."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Names `path` in an OSError in place of a temporary file beside it."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Names `path` in an OSError that names no file: that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            error.filename = str(path)
        raise


def write_atomically(path: Path, data: bytes) -> None:
    """Writes beside `path`, flushes to disk and renames. A failure leaves nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():  # the rename would replace a device or a pipe
        raise FileExistsError(f"{path}: expected a file or nothing, found something else")
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with naming(path), os.fdopen(_new_file(beside), "wb") as file:
            os.fchmod(file.fileno(), 0o644)  # whatever the umask: a server may run as another user
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            if not beside.exists():
                link = f"/proc/self/fd/{file.fileno()}"
                os.link(link, beside, src_dir_fd=file.fileno())  # with a folder Python follows the link
            beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


def _new_file(path: Path) -> int:
    """Without a name where the file system can: a kill leaves nothing. Else `path`."""
    try:
        return os.open(path.parent, os.O_TMPFILE | os.O_WRONLY)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):  # of file systems, of old kernels
            raise
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def sha256(content: bytes | Path) -> str:
    """Of the bytes, or of a file's."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def reason(error: Exception) -> str:
    """Why a file could not be read, in one line without Python's class names."""
    if isinstance(error, KeyError):
        return f"no {error}"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())


def typed_command() -> str:
    """The command of this process; a program of another folder, as of `python -m`, by its name alone."""
    program, *arguments = sys.argv
    if Path(program).is_absolute():
        words = [Path(program).stem]
    else:
        words = ["python", program] if program.endswith(".py") else [program]
    return shlex.join([*words, *arguments])
