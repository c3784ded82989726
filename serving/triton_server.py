"""The supervised Triton server: a Child whose log is bounded and whose end leaves nothing behind.

In: the user's options, the plans of the models. Out: the server's process; after its end the reason in words.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping

from serving.arguments import ServerOptions
from serving.child import Child
from serving.events import Events
from serving.healing import ServerLost
from serving.processes import Family, Stub, remove_shared_memory, remove_stale_environments
from serving.server_log import ServerLog
from serving.version_plan import Plan

DEATH_S = 0.5  # between a server's last answer and its exit code


class StartRefused(ServerLost):
    """The server cannot start, and another start would not help."""


class TritonServer(Child):
    """Starts once, with the models whose configuration on disk serves what `plans` say; others are loaded later."""

    def __init__(self, options: ServerOptions, plans: Mapping[str, Plan], events: Events) -> None:
        at_start = [name for name, each in plans.items() if not each.differs and each.versions != ()]
        complete = all(each.complete for each in plans.values())
        self._memory = f"vitbn_{secrets.token_hex(4)}_"
        self._events, self.log = events, ServerLog(events.say)
        arguments = options.command(at_start, complete, self._memory)
        super().__init__([sys.executable, "-m", "serving.launcher", *arguments], self.log.writer)

    def start(self) -> None:
        try:
            super().start()
        finally:
            self.log.started()
        self._family = Family(self.pid)
        self._events.started(self.pid)
        remove_stale_environments()  # while the server starts: it takes a tenth of a second

    def check(self) -> None:
        """Raises ServerLost once the server has ended."""
        if not self.alive():
            raise ServerLost("died", self.ending)

    def stubs(self) -> list[Stub]:
        """The models' stubs, dead or alive. Also warns of few free descriptors."""
        self._events.descriptors(*self._family.descriptors())
        return self._family.look()

    def cause(self, lost: ServerLost) -> ServerLost:
        """The cause behind `lost`: if a server dies during a load, it looks as if only the load had failed."""
        code = self.wait(DEATH_S)
        if code is None:
            return StartRefused(lost.reason, self.log.reason or str(lost)) if isinstance(lost, StartRefused) else lost
        self.log.ended()
        told = f"{self.ending}: {self.log.reason}" if code > 0 and self.log.reason else self.ending
        return (StartRefused if code > 0 and self.log.by_launcher else ServerLost)("died", told)

    def stop(self, grace_s: float | None = None) -> int | None:
        """Stops the server, ends its stubs and removes their shared memory."""
        code = super().stop(grace_s)
        self._events.swept(self.kill_session(), remove_shared_memory(self._memory))
        self.log.ended()
        return code
