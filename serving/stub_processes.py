"""Finds a server's stubs, the Python processes of which each runs an instance of a model.

In: the server's process id. Out: its stubs. Also removes the shared memory and folders that dead servers leave.
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
ENVIRONMENTS = "python_env_*"  # Triton makes these in /tmp, whatever $TMPDIR says
CLOCK_S = 60.0  # tolerance between the clocks of file times and of process times
STUB = "triton_python_backend_stub"
# A stub's arguments: model file, shared-memory region, two sizes, parent, folder, offset, instance.
FILE_WORD, INSTANCE_WORD = 1, 8
STUB_SHELL = "bash"  # Triton starts bash, which becomes the stub


@dataclass(frozen=True)
class Stub:
    """A stub process. `model` is empty and `version` 0 if the process died before its first look-up."""

    process: psutil.Process
    model: str
    version: int

    @property
    def stopped(self) -> bool:
        """Whether the process is stopped or dead. Triton notices neither."""
        try:
            return self.process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True
        except OSError:  # without a free descriptor the state is unknown
            return False

    def kill(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self.process.kill()

    def processor_s(self) -> float:
        """The processor time that the process has used, in seconds; 0 if it is unknown."""
        with suppress(psutil.NoSuchProcess, OSError):
            times = self.process.cpu_times()
            return float(times.user + times.system)
        return 0.0


@dataclass
class ServerProcesses:
    """The server with the process id `pid`, and its stubs.

    `last_stubs`: process -> stub of the last look-up. They are remembered because a dead process has no arguments.
    """

    pid: int
    last_stubs: dict[psutil.Process, Stub] = field(default_factory=dict)

    def stubs(self) -> list[Stub]:
        """Looks up the stubs, dead or alive. Without a free descriptor: the stubs of the last look-up."""
        children: list[psutil.Process] = []
        try:
            children = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            pass
        except OSError:
            return [*self.last_stubs.values()]
        stubs = {child: self.last_stubs[child] for child in children if child in self.last_stubs}
        stubs |= {stub.process: stub for child in children if child not in stubs for stub in _stub(child)}
        self.last_stubs = stubs
        return [*stubs.values()]

    def model_stubs(self) -> list[Stub]:
        """The stubs whose model is known."""
        return [stub for stub in self.stubs() if stub.model]

    def descriptors(self) -> tuple[int, int]:
        """The number of descriptors that the server has open, and its limit; (0, 1) if they are unknown."""
        with suppress(psutil.Error, OSError):
            server = psutil.Process(self.pid)
            return server.num_fds(), server.rlimit(psutil.RLIMIT_NOFILE)[0]
        return 0, 1


def remove_shared_memory(prefix: str) -> int:
    """Removes a dead server's shared memory: regions whose names begin with `prefix`. Returns the freed bytes."""
    size = 0
    with suppress(OSError):  # no descriptor is left, or a region is gone
        for region in [*SHARED_MEMORY.glob(f"{prefix}*")]:
            size += region.stat().st_size
            region.unlink()
    return size


def remove_stale_environments() -> None:
    """Removes the folders that killed Triton servers of this user have left in /tmp.

    Triton's Python backend makes an empty folder at its start and removes it at its end. The folder's name does not
    tell its server, so a folder counts as stale if it is older than every running Triton server.
    """
    try:
        folders = [*Path("/tmp").glob(ENVIRONMENTS)]
        oldest_s = min(map(_triton_start_s, psutil.process_iter()), default=math.inf)
    except OSError:  # no descriptor is left
        return
    for folder in folders:
        with suppress(OSError):  # the folder has content, or is already removed
            status = folder.lstat()
            if status.st_uid == os.getuid() and status.st_mtime < oldest_s - CLOCK_S:
                folder.rmdir()


def _triton_start_s(process: psutil.Process) -> float:
    """The start of a Triton server in seconds since 1970; infinity for another process."""
    with suppress(OSError, psutil.Error):  # the process just ended, or is another user's
        if b"/libtritonserver" in Path(f"/proc/{process.pid}/maps").read_bytes():
            return float(process.create_time())
    return math.inf


def _stub(process: psutil.Process) -> Iterable[Stub]:
    """The stub that the process is, or nothing."""
    with suppress(psutil.NoSuchProcess, OSError, IndexError, ValueError):
        if process.status() == psutil.STATUS_ZOMBIE:  # a zombie has a name of at most 15 letters, and no arguments
            return [Stub(process, "", 0)] if process.name() in (STUB[:15], STUB_SHELL) else []
        words = process.cmdline()
        if Path(words[0]).name == STUB:
            file, instance = Path(words[FILE_WORD]), words[INSTANCE_WORD]
            version = next(int(part) for part in reversed(file.parts) if re.fullmatch("[1-9][0-9]*", part))
            return [Stub(process, re.sub(r"_\d+_\d+$", "", instance), version)]
    return []
