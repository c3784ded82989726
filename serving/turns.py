"""Lets instances of a version in one server compute in turn.

In: the server's file of locks, the version's model file. Out: a context manager; a lock ends with its process. Other
servers have their own cores, so the model file itself is never locked. Why: docs/decisions.md, Serving.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType

from serving.contract import Config
from serving.launcher import TURNS_VARIABLE


class Turns:
    """Locks the byte of `locks` that belongs to `path`. Raises OSError."""

    def __init__(self, locks: Path, path: Path) -> None:
        self._descriptor = os.open(locks, os.O_RDWR)
        self._byte = zlib.crc32(os.fsencode(path))

    def __enter__(self) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, self._byte)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._byte)


def turns(config: Config, path: Path) -> AbstractContextManager[None]:
    """`Turns` for a model with a standby (a second instance group), else nothing."""
    locks = os.environ.get(TURNS_VARIABLE)
    if len(config.get("instance_group", ())) < 2 or locks is None:
        return nullcontext()
    try:
        return Turns(Path(locks), path)
    except OSError:  # without locks both compute at once: right but slower
        return nullcontext()
