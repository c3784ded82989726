"""Runs the probe of `clients/probe.py` repeatedly in a child process.

In: the server's address and repositories. Out: verdicts. It is a separate process because serving/ imports nothing of
clients/ and a server that hangs must not hang the supervisor.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from serving.child import Child

EVERY_S = 1.0
TIMEOUT_S = 1.5
SILENCE_S = 15.0  # then the prober itself is restarted


@dataclass(frozen=True)
class Failure:
    model: str
    version: int
    reason: str
    wrong: bool = False  # it answers, but not as published
    broken: bool = False  # its files are not as published

    @property
    def silent(self) -> bool:
        return self.reason.startswith("no answer")


@dataclass(frozen=True)
class Verdict:
    """`states`: (model, version) -> the probe's word; empty if the server gave no answer, and `reason` says why."""

    ok: bool
    states: Mapping[tuple[str, int], str]
    failures: tuple[Failure, ...] = ()
    reason: str = ""

    @property
    def models(self) -> list[str]:
        return sorted({model for model, _ in self.states})

    def versions(self, model: str, *states: str) -> set[int]:
        """The model's versions with one of these states, all versions if no state is given."""
        return {
            number for (name, number), state in self.states.items() if name == model and (not states or state in states)
        }

    def with_failures(self, more: Sequence[Failure]) -> Verdict:
        return replace(self, ok=False, failures=(*self.failures, *more)) if more else self


class Prober(Child):
    """The probe as a child. It also answers health checks at `health_port` of loopback, unless that is None."""

    grace_s = 0.0
    pause_s = 5.0
    output = subprocess.PIPE

    def __init__(
        self, url: str, headers: Mapping[str, str], repositories: Sequence[Path], health_port: int | None = None
    ) -> None:
        command = [sys.executable, "-m", "clients.probe", "--url", url]
        command += ["--every", str(EVERY_S), "--timeout", str(TIMEOUT_S)]
        command += [f"--header={name}:{value}" for name, value in headers.items()]
        command += [f"--repository={each}" for each in repositories]
        command += [f"--listen=127.0.0.1:{health_port}"] if health_port else []
        super().__init__(command)
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._heard_s = 0.0

    def start(self) -> None:
        super().start()
        self._lines, self._heard_s = queue.Queue(), time.monotonic()
        threading.Thread(target=_read, args=(self.process, self._lines), daemon=True).start()

    def alive(self) -> bool:
        return super().alive() and time.monotonic() - self._heard_s < SILENCE_S

    def verdict(self) -> Verdict | None:
        """The next verdict, None if there is none yet. Starts a silent or dead prober again."""
        with suppress(queue.Empty):
            line = self._lines.get_nowait()
            self._heard_s = time.monotonic()
            return parse(json.loads(line))
        self.revive()
        return None


def parse(probe: Mapping[str, Any]) -> Verdict:
    versions = [(each, (each["model"], int(each["version"]))) for each in probe["versions"]]
    failures = tuple(
        Failure(*which, each["reason"], each["state"] == "wrong")
        for each, which in versions
        if each["state"] in ("failed", "wrong")
    )
    return Verdict(probe["ok"], {which: each["state"] for each, which in versions}, failures, probe["reason"])


def _read(process: subprocess.Popen[bytes] | None, lines: queue.Queue[bytes]) -> None:
    if process and process.stdout:
        for line in process.stdout:
            lines.put(line)
