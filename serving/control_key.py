"""Stores the key of a server's control interface where only the user who started the server can read it.

In: the server's ports. Out: a file of mode 0600 for each port, named by the port, in a folder of mode 0700. The key
protects against web pages, not against other users of the machine: Triton takes it on its command line only, which
`ps` shows to everybody.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from common.addresses import is_loopback
from common.files import reason, write_atomically

HEADER = "control-key"
GRPC_PREFIX = "triton-grpc-protocol-"  # before a header's name over gRPC
LONGEST = 1024  # characters of a key


class KeyFailed(Exception):
    """The message is one line for the user."""


def draw() -> str:
    """A new random key."""
    return secrets.token_urlsafe(24)


def folders() -> list[Path]:
    """The folders that may hold keys; new keys go to the first.

    There are several because a service and a shell of the same user have different environment variables.
    """
    runtime, state = os.environ.get("XDG_RUNTIME_DIR"), os.environ.get("XDG_STATE_HOME")
    parents = [Path(runtime)] if runtime and belongs_to_user(Path(runtime)) else []  # `su` keeps the variable
    parents += [Path(state)] if state else []
    return [*(parent / "vitbn" for parent in parents), temporary_folder()]


def temporary_folder() -> Path:
    """This user's folder where the environment names none; it may be missing, or another user's."""
    return Path(tempfile.gettempdir(), f"vitbn-{os.getuid()}")


def keep(ports: Sequence[int], key: str) -> None:
    """Writes the key's file for every port. Raises KeyFailed."""
    folder = folders()[0]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not belongs_to_user(folder):
            raise KeyFailed(f"{folder}: expected a folder of user {os.getuid()}, found another user's or a link")
        folder.chmod(0o700)
        for port in ports:
            write_atomically(folder / str(port), f"{key}\n".encode(), 0o600)
    except OSError as error:
        raise KeyFailed(
            f"{folder}: expected a folder for the control interface's key, found {reason(error)}"
        ) from error


def find(address: str) -> str | None:
    """The newest key that this user has for a server at loopback HOST:PORT, or None."""
    host, _, port = address.rpartition(":")
    if not is_loopback(host) or not port.isdecimal():
        return None
    newest: tuple[int, str] | None = None
    for folder in folders():
        with suppress(OSError, KeyFailed):
            path = folder / port
            if belongs_to_user(folder) and not path.is_symlink():
                newest = max(filter(None, (newest, (path.stat().st_mtime_ns, read(path)))))
    return newest[1] if newest else None


def read(path: Path) -> str:
    """Reads the key in a file. Raises OSError and KeyFailed."""
    with path.open(errors="replace") as file:
        key = file.read(LONGEST + 1).strip()
    if not key or len(key) > LONGEST or not key.isascii() or not key.isprintable():
        raise KeyFailed(f"{path}: expected a key of printable ASCII characters, found none")
    return key


def forget(ports: Sequence[int], key: str | None = None) -> None:
    """Removes the files of these ports; with `key` only those that hold it, as another server may use a port by now."""
    for path in (folder / str(port) for folder in folders() for port in ports):
        with suppress(OSError, KeyFailed):
            if key in (None, read(path)):
                path.unlink()


def belongs_to_user(folder: Path) -> bool:
    """Whether the path is a folder of this user, and no link."""
    with suppress(OSError):
        status = folder.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return False
