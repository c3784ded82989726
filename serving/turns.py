"""Lets instances of a version compute in turn.

In: the version's model file. Out: a context manager; the lock ends with its process. The second instance is a standby
that lets Triton bound the queue; computing on the same cores, it would only slow the first down.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType

from serving.contract import Config


class Turns:
    """A lock of all processes with this `path`; raises OSError on file systems without locks."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        with self:
            pass

    def __enter__(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)


def turns(config: Config, path: Path) -> AbstractContextManager[None]:
    """`Turns` for a model with a standby (a second instance group), else nothing."""
    if len(config.get("instance_group", ())) < 2:
        return nullcontext()
    try:
        return Turns(path)
    except OSError:  # without locks both compute at once: right but slower
        return nullcontext()
