"""Watches the processes that a load starts: Triton 2.51 waits for ever for a process that dies or stops during a load.

In: a server before the load. Out: ServerLost if a process of the load dies, since only a new server helps.
"""

from __future__ import annotations

from serving.healing import Lame, ServerLost
from serving.stub_processes import Stub
from serving.triton_server import TritonServer
from serving.version_selection import Versions

LOST_S = 1.5  # a process that is stopped for less may continue


class LoadWatch:
    """Watches one load. Older processes do not count: the load ends them, or the supervisor heals them after it."""

    def __init__(self, server: TritonServer, versions: Versions) -> None:
        self._server, self._versions = server, versions
        self._old, self._lame = {*server.stubs()}, Lame(LOST_S)

    def check(self) -> None:
        """Raises ServerLost if a process of the load has been dead or stopped for LOST_S."""
        for stub in self._lame.among(stub for stub in self._server.stubs() if stub not in self._old):
            raise lost_process(stub, self._versions)


def lost_process(stub: Stub, versions: Versions) -> ServerLost:
    """The error for a stub that died while it was loaded. The second time `versions` gives the stub's version up."""
    loaded = f"model {stub.model}, version {stub.version}," if stub.model else "a model"
    if stub.model:
        versions.load_failed(stub.model, stub.version, "its processes die meanwhile")
    return ServerLost("failed", f"{loaded} lost process {stub.process.pid} while it was loaded")
