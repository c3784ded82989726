"""Watches the processes that a load starts: Triton 2.51 waits for ever for a process that dies or stops meanwhile.

In: a server before the load. Out: ServerLost, as only a new server helps.
"""

from __future__ import annotations

from serving.healing import Lame, ServerLost
from serving.processes import Stub
from serving.served_versions import Versions
from serving.triton_server import TritonServer

LOST_S = 1.5  # a process that stands still for less goes on


class LoadWatch:
    """Processes that were there before the load do not count: they are ended by it, or healed after it."""

    def __init__(self, server: TritonServer, versions: Versions) -> None:
        self._server, self._versions = server, versions
        self._old, self._lame = {*server.stubs()}, Lame(LOST_S)

    def check(self) -> None:
        """Raises ServerLost."""
        for stub in self._lame.among(each for each in self._server.stubs() if each not in self._old):
            raise lost_process(stub, self._versions)


def lost_process(stub: Stub, versions: Versions) -> ServerLost:
    """The error for `stub`, dead while it was loaded. `versions` gives its version up the second time."""
    which = f"model {stub.model}, version {stub.version}," if stub.model else "a model"
    if stub.model:
        versions.load_failed(stub.model, stub.version, "its processes die meanwhile")
    return ServerLost("failed", f"{which} lost process {stub.process.pid} while it was loaded")
