"""Runs `clients/probe.py` repeatedly in a child process.

In: the server's address and repositories. Out: verdicts. The probe is a process of its own because serving/ imports
nothing of clients/, and because a server that hangs must not hang the supervisor.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from serving.child import Child

EVERY_S = 1.0
TIMEOUT_S = 1.5
SILENCE_S = 15.0  # after so long without a verdict the prober itself is restarted


@dataclass(frozen=True)
class Failure:
    """A version that failed the probe."""

    model: str
    version: int
    reason: str
    wrong: bool = False  # the version answers, but not as published
    broken: bool = False  # the version's files are not as published

    @property
    def silent(self) -> bool:
        """Whether the version gave no answer in time."""
        return self.reason.startswith("no answer")


@dataclass(frozen=True)
class Verdict:
    """The result of a probe. `states`: (model, version) -> "right", "wrong", "failed", "busy" or "not compared".

    Without an answer of the server `states` is empty, and `reason` says why.
    """

    ok: bool
    states: Mapping[tuple[str, int], str]
    failures: tuple[Failure, ...] = ()
    reason: str = ""

    @property
    def models(self) -> list[str]:
        """Names of the probed models, sorted."""
        return sorted({model for model, _ in self.states})

    def versions(self, model: str, *states: str) -> set[int]:
        """The model's versions in one of these states; all its versions if no state is given."""
        return {
            number for (name, number), state in self.states.items() if name == model and (not states or state in states)
        }


class Prober(Child):
    """The probe as a child process, which also answers health checks at loopback's `health_port` if there is a port."""

    grace_s = 0.0
    pause_s = 5.0
    output = subprocess.PIPE

    def __init__(
        self, url: str, headers: Mapping[str, str], repositories: Sequence[str], health_port: int | None = None
    ) -> None:
        command = [sys.executable, "-m", "clients.probe", "--url", url]
        command += ["--every", str(EVERY_S), "--timeout", str(TIMEOUT_S)]
        command += [f"--header={name}:{value}" for name, value in headers.items()]
        command += [f"--repository={repository}" for repository in repositories]
        command += [f"--listen=127.0.0.1:{health_port}"] if health_port else []
        super().__init__(command)
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._last_verdict_s = 0.0

    def start(self) -> None:
        super().start()
        self._lines, self._last_verdict_s = queue.Queue(), time.monotonic()
        threading.Thread(target=_read, args=(self.process, self._lines), daemon=True).start()

    def alive(self) -> bool:
        return super().alive() and time.monotonic() - self._last_verdict_s < SILENCE_S

    def verdict(self) -> Verdict | None:
        """The next verdict, or None if there is no new verdict. Starts a silent or dead prober again."""
        with suppress(queue.Empty):
            line = self._lines.get_nowait()
            self._last_verdict_s = time.monotonic()
            return parse(json.loads(line))
        self.revive()
        return None


def parse(probe: Mapping[str, Any]) -> Verdict:
    """Reads a line of JSON that `clients/probe.py` wrote."""
    results = probe["versions"]
    states = {(result["model"], int(result["version"])): result["state"] for result in results}
    failures = tuple(
        Failure(result["model"], int(result["version"]), result["reason"], result["state"] == "wrong")
        for result in results
        if result["state"] in ("failed", "wrong")
    )
    return Verdict(probe["ok"], states, failures, probe["reason"])


def _read(process: subprocess.Popen[bytes] | None, lines: queue.Queue[bytes]) -> None:
    if process and process.stdout:
        for line in process.stdout:
            lines.put(line)
