"""The supervised Triton server: a Child with a bounded log, whose end leaves no stub and no shared memory.

In: the user's arguments, the plans of the models. Out: the server's process; after its end the reason in words.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping

from serving.child import Child
from serving.events import Events
from serving.healing import ServerLost
from serving.intact_versions import Plan
from serving.parse_triton_arguments import Arguments
from serving.server_log import ServerLog
from serving.stub_processes import ServerProcesses, Stub, remove_shared_memory, remove_stale_environments

DEATH_S = 0.5  # at most between a dying server's last answer and its exit code


class StartRefused(ServerLost):
    """The server cannot start, and another start would fail alike."""


class TritonServer(Child):
    """A server that starts once.

    At its start it loads the models whose config.pbtxt serves what `plans` say; the supervisor loads the others later.
    """

    def __init__(self, arguments: Arguments, plans: Mapping[str, Plan], events: Events) -> None:
        at_start = [name for name, plan in plans.items() if not plan.differs and plan.versions != ()]
        complete = all(plan.complete for plan in plans.values())
        self._memory = f"vitbn_{secrets.token_hex(4)}_"
        self._events, self.log = events, ServerLog(events.say)
        words = arguments.under_supervisor(at_start, complete, self._memory)
        super().__init__([sys.executable, "-m", "serving.launcher", *words], self.log.writer)

    def start(self) -> None:
        try:
            super().start()
        finally:
            self.log.started()
        self._processes = ServerProcesses(self.pid)
        self._events.started(self.pid)
        remove_stale_environments()  # takes 0.1 s, so do it while the server starts

    def check(self) -> None:
        """Raises ServerLost once the server has ended."""
        if not self.alive():
            raise ServerLost("died", self.ending)

    def stubs(self) -> list[Stub]:
        """The models' stubs, dead or alive. Also warns if few descriptors are free."""
        self._events.descriptors(*self._processes.descriptors())
        return self._processes.stubs()

    def cause(self, lost: ServerLost) -> ServerLost:
        """The cause behind `lost`. A server that dies during a load first looks like a failed load."""
        code = self.wait(DEATH_S)
        if code is None:
            return StartRefused(lost.reason, self.log.reason or str(lost)) if isinstance(lost, StartRefused) else lost
        self.log.ended()
        detail = f"{self.ending}: {self.log.reason}" if code > 0 and self.log.reason else self.ending
        return (StartRefused if code > 0 and self.log.never_started else ServerLost)("died", detail)

    def stop(self, grace_s: float | None = None) -> int | None:
        """Stops the server, kills its stubs and removes their shared memory. Returns the exit code."""
        code = super().stop(grace_s)
        self._events.swept(self.kill_session(), remove_shared_memory(self._memory))
        self.log.ended()
        return code
