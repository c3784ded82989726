"""Writes a file completely or not at all, hashes files, makes errors name the file, cleans up when it is ended."""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import os
import secrets
import shlex
import shutil
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import IO


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Makes an OSError name `path`, in place of a temporary file that the error may name.

    Leaves an error without errno as it is: its text is ours and names the file.
    """
    try:
        yield
    except OSError as error:
        if error.errno:
            error.filename = str(path)
        raise


@contextmanager
def naming_if_unnamed(path: Path) -> Iterator[None]:
    """Makes an OSError that names no file, such as the error of a full disk, name `path`."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            error.filename = str(path)
        raise


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Writes `data` to `path` as `atomic_file` does: completely or not at all. Raises OSError."""
    with atomic_file(path, mode) as file:
        file.write(data)


@contextmanager
def atomic_file(path: Path, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """Yields a temporary file next to `path`; the end of the block flushes it to disk and renames it to `path`.

    `mode`: the file's permissions, whatever the umask. After a failure `path` is as before, and no temporary file is
    left. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():  # the rename would replace a device or a pipe
        raise FileExistsError(f"{path}: expected a file or nothing, found something else")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with naming(path), os.fdopen(_new_file(temporary, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)  # a server may run as another user
            yield file
            file.flush()
            os.fsync(file.fileno())
            if not temporary.exists():
                link = f"/proc/self/fd/{file.fileno()}"
                os.link(link, temporary, src_dir_fd=file.fileno())  # only with src_dir_fd does Python follow the link
            temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _new_file(path: Path, mode: int) -> int:
    """Opens a new file without a name, which a kill leaves no trace of; at `path` if the file system needs a name."""
    try:
        return os.open(path.parent, os.O_TMPFILE | os.O_WRONLY, mode)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):  # the file system or an old kernel cannot
            raise
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)


def check_writable(folder: Path) -> None:
    """Raises OSError if no file can be created in `folder`, or in its nearest existing parent. Leaves no file."""
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    with naming(folder):
        TemporaryFile(dir=nearest).close()


@contextmanager
def swept_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Yields a new, locked folder in `parent` and removes it afterwards; first those that killed processes left there.

    Another process may take the new folder for a dead process's before it is locked, and remove it; then a further
    folder is made. Raises OSError.
    """
    for old in parent.glob(f"{glob.escape(prefix)}*"):
        with suppress(OSError), _locked(old) as stale:  # its process may remove it just now, or it is another user's
            if stale:
                shutil.rmtree(old, ignore_errors=True)
    while True:
        folder = Path(mkdtemp(prefix=prefix, dir=parent))
        with ExitStack() as stack:
            try:
                locked = stack.enter_context(_locked(folder))
            except FileNotFoundError:
                continue
            if locked and folder.exists():
                try:
                    yield folder
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                return


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Locks the folder within the block; yields False if another process has the lock."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        except BlockingIOError:
            locked = False
        yield locked
    finally:
        os.close(descriptor)


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a closed terminal, raise an exception in the block, as Ctrl-C does, so that it cleans up.

    Leaves another handler as it is, such as nohup's.
    """
    main_thread = threading.current_thread() is threading.main_thread()
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    for number in numbers if main_thread else ():
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        for number in numbers if main_thread else ():
            signal.signal(number, signal.SIG_DFL)


def regular(path: Path) -> Path:
    """`path`. Raises OSError unless it is a file: reading a pipe may wait for a writer, reading a device never end."""
    if not stat.S_ISREG(mode := path.stat().st_mode):
        found = os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "no regular file"
        raise OSError(errno.EINVAL, found, str(path))
    return path


def sha256(content: bytes | Path) -> str:
    """The hexadecimal SHA-256 of bytes or of the file at a path."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def reason(error: Exception) -> str:
    """The error's reason in one line without Python's class names, for a message that names the file itself."""
    if isinstance(error, KeyError):
        return f"no {error}"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())


def typed_command() -> str:
    """This process's command line as a user types it: an absolute path of the program is cut to the program's name."""
    program, *arguments = sys.argv
    if Path(program).is_absolute():
        words = [Path(program).stem]
    else:
        words = ["python", program] if program.endswith(".py") else [program]
    return shlex.join([*words, *arguments])
