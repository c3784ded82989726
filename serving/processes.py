"""A server's processes: itself and a Python stub per model instance.

In: the server's process id. Out: its stubs; after its death neither they nor their shared memory and folders remain.
"""

from __future__ import annotations

import math
import os
import re
import time
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
KILL_S, POLL_S = 1.0, 0.02


@dataclass(frozen=True)
class Stub:
    process: psutil.Process
    model: str
    version: int

    @property
    def stopped(self) -> bool:
        """Stopped or dead; Triton notices neither."""
        with suppress(psutil.NoSuchProcess):
            return self.process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
        return True

    def kill(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self.process.kill()

    def processor_s(self) -> float:
        with suppress(psutil.NoSuchProcess):
            times = self.process.cpu_times()
            return float(times.user + times.system)
        return 0.0


@dataclass
class Family:
    """The server and its descendants. `look` remembers the processes that `sweep` kills.

    `prefix` begins the names of the stubs' shared memory.
    """

    pid: int
    prefix: str = ""
    members: set[psutil.Process] = field(default_factory=set)
    stubs: dict[psutil.Process, Stub] = field(default_factory=dict)  # a dead process no longer tells its arguments

    def look(self) -> list[Stub]:
        """The loaded models' stubs, dead or alive."""
        children: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.pid).children(recursive=True)
        self.members |= {*children}
        known = {child: self.stubs[child] for child in children if child in self.stubs}
        self.stubs = known | {stub.process: stub for child in children for stub in _stub(child)}
        return [*self.stubs.values()]

    def descriptors(self) -> tuple[int, int]:
        """How many the server has open, and its limit."""
        with suppress(psutil.Error):
            server = psutil.Process(self.pid)
            return server.num_fds(), server.rlimit(psutil.RLIMIT_NOFILE)[0]
        return 0, 1

    def sweep(self) -> tuple[int, int]:
        """Removes what a dead server has left. Returns the number of killed processes and of freed bytes."""
        left = [member for member in self.members if _lives(member)]
        for member in left:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        deadline = time.monotonic() + KILL_S
        while any(map(_lives, left)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        regions = [*SHARED_MEMORY.glob(f"{self.prefix}*")] if self.prefix else []
        size = sum(each.stat().st_size for each in regions)
        for region in regions:
            region.unlink()
        remove_stale_environments()
        return len(left), size


def remove_stale_environments() -> None:
    """Removes the folders that killed Triton servers of this user have left in /tmp.

    Triton's Python backend makes an empty folder at its start and removes it at its end; its name does not say whose it
    is. A folder is stale if it is older than every Triton server that lives.
    """
    folders = {folder: folder.lstat() for folder in Path("/tmp").glob(ENVIRONMENTS)}
    oldest_s = min((each.create_time() for each in psutil.process_iter() if _is_triton(each)), default=math.inf)
    for folder, found in folders.items():
        if found.st_uid == os.getuid() and found.st_mtime < oldest_s - CLOCK_S:
            with suppress(OSError):  # it has content, or another supervisor was faster
                folder.rmdir()


def _is_triton(process: psutil.Process) -> bool:
    with suppress(OSError):  # it just ended, or is another user's
        return "/libtritonserver" in Path(f"/proc/{process.pid}/maps").read_text()
    return False


def _lives(process: psutil.Process) -> bool:
    """False for a zombie: its adoptive parent may never read the exit code."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _stub(process: psutil.Process) -> Iterable[Stub]:
    with suppress(psutil.NoSuchProcess, IndexError, ValueError):
        words = process.cmdline()
        if Path(words[0]).name == STUB:
            file, instance = Path(words[FILE_WORD]), words[INSTANCE_WORD]
            version = next(int(part) for part in reversed(file.parts) if re.fullmatch("[1-9][0-9]*", part))
            return [Stub(process, re.sub(r"_\d+_\d+$", "", instance), version)]
    return []
