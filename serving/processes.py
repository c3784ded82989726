"""A server's processes: itself and a Python stub per model instance.

In: the server's process id. Out: its stubs. Also removes the shared memory and folders of dead servers.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")
ENVIRONMENTS = "python_env_*"  # in /tmp, whatever $TMPDIR says
CLOCK_S = 60.0  # by which the times of files and of processes may differ
STUB = "triton_python_backend_stub"
# A stub's arguments: model file, region, two sizes, parent, folder, offset, instance.
FILE_WORD, INSTANCE_WORD = 1, 8
BECOMES_STUB = "bash"  # Triton starts a stub by it


@dataclass(frozen=True)
class Stub:
    """`model` is empty if the process had died before anybody looked."""

    process: psutil.Process
    model: str
    version: int

    @property
    def stopped(self) -> bool:
        """Stopped or dead; Triton notices neither."""
        try:
            return self.process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True
        except OSError:  # without a free descriptor nobody knows
            return False

    def kill(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self.process.kill()

    def processor_s(self) -> float:
        with suppress(psutil.NoSuchProcess, OSError):
            times = self.process.cpu_times()
            return float(times.user + times.system)
        return 0.0


@dataclass
class Family:
    """The server with the process id `pid`, and its stubs."""

    pid: int
    stubs: dict[psutil.Process, Stub] = field(default_factory=dict)  # a dead process no longer tells its arguments

    def look(self) -> list[Stub]:
        """The loaded models' stubs, dead or alive; those of the last look without a free descriptor.

        A process that had died before the first look has no model.
        """
        children: list[psutil.Process] = []
        try:
            children = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            pass
        except OSError:
            return [*self.stubs.values()]
        seen = {child: self.stubs[child] for child in children if child in self.stubs}
        self.stubs = seen | {stub.process: stub for child in children if child not in seen for stub in _stub(child)}
        return [*self.stubs.values()]

    def known(self) -> list[Stub]:
        """Those whose model is known."""
        return [stub for stub in self.look() if stub.model]

    def descriptors(self) -> tuple[int, int]:
        """How many descriptors the server has open, and its limit."""
        with suppress(psutil.Error, OSError):
            server = psutil.Process(self.pid)
            return server.num_fds(), server.rlimit(psutil.RLIMIT_NOFILE)[0]
        return 0, 1


def remove_shared_memory(prefix: str) -> int:
    """Removes a dead server's regions, whose names begin with `prefix`. Returns the freed bytes."""
    size = 0
    with suppress(OSError):  # no descriptor is left, or a region is gone
        for region in [*SHARED_MEMORY.glob(f"{prefix}*")]:
            size += region.stat().st_size
            region.unlink()
    return size


def remove_stale_environments() -> None:
    """Removes the folders that killed Triton servers of this user have left in /tmp.

    Triton's Python backend makes an empty folder at its start and removes it at its end; its name does not say whose it
    is. A folder is stale if it is older than every Triton server that lives.
    """
    try:
        folders = [*Path("/tmp").glob(ENVIRONMENTS)]
        oldest_s = min(map(_triton_start_s, psutil.process_iter()), default=math.inf)
    except OSError:  # no descriptor is left
        return
    for folder in folders:
        with suppress(OSError):  # it has content, or is gone
            found = folder.lstat()
            if found.st_uid == os.getuid() and found.st_mtime < oldest_s - CLOCK_S:
                folder.rmdir()


def _triton_start_s(process: psutil.Process) -> float:
    """When a Triton server started, in seconds since 1970; infinity for another process."""
    with suppress(OSError, psutil.Error):  # it just ended, or is another user's
        if b"/libtritonserver" in Path(f"/proc/{process.pid}/maps").read_bytes():
            return float(process.create_time())
    return math.inf


def _stub(process: psutil.Process) -> Iterable[Stub]:
    with suppress(psutil.NoSuchProcess, OSError, IndexError, ValueError):
        if process.status() == psutil.STATUS_ZOMBIE:  # it has a name of at most 15 letters, and no arguments
            return [Stub(process, "", 0)] if process.name() in (STUB[:15], BECOMES_STUB) else []
        words = process.cmdline()
        if Path(words[0]).name == STUB:
            file, instance = Path(words[FILE_WORD]), words[INSTANCE_WORD]
            version = next(int(part) for part in reversed(file.parts) if re.fullmatch("[1-9][0-9]*", part))
            return [Stub(process, re.sub(r"_\d+_\d+$", "", instance), version)]
    return []
