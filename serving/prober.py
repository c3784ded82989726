"""Runs the probe of `clients/probe.py` repeatedly in a child process.

In: the server's address. Out: verdicts. The process keeps serving/ free of clients/ and cannot hang with the server.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

EVERY_S = 1.0
TIMEOUT_S = 1.5
SILENCE_S = 15.0  # then the prober itself is restarted


@dataclass(frozen=True)
class Failure:
    model: str
    version: int
    reason: str
    wrong: bool = False  # it answers, but not as published

    @property
    def silent(self) -> bool:
        return self.reason.startswith("no answer")


@dataclass(frozen=True)
class Verdict:
    """Without versions `reason` explains the failure."""

    ok: bool
    failures: tuple[Failure, ...]
    models: frozenset[str]
    reason: str


class Prober:
    """Also answers health checks at `health_port` of loopback, unless None."""

    def __init__(self, url: str, headers: Mapping[str, str], health_port: int | None = None) -> None:
        self._command = [sys.executable, "-m", "clients.probe", "--url", url]
        self._command += ["--every", str(EVERY_S), "--timeout", str(TIMEOUT_S)]
        self._command += [f"--header={name}:{value}" for name, value in headers.items()]
        self._command += [f"--listen=127.0.0.1:{health_port}"] if health_port else []
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._process: subprocess.Popen[bytes] | None = None
        self._heard_s = 0.0

    def start(self) -> None:
        self.stop()
        self._lines = queue.Queue()
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self._heard_s = time.monotonic()
        threading.Thread(target=_read, args=(self._process, self._lines), daemon=True).start()

    def verdict(self) -> Verdict | None:
        with suppress(queue.Empty):
            line = self._lines.get_nowait()
            self._heard_s = time.monotonic()
            return parse(json.loads(line))
        if time.monotonic() - self._heard_s > SILENCE_S:
            self.start()
        return None

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def parse(probe: Mapping[str, Any]) -> Verdict:
    versions = probe["versions"]
    failures = tuple(
        Failure(each["model"], int(each["version"]), each["reason"], each["state"] == "wrong")
        for each in versions
        if each["state"] in ("failed", "wrong")
    )
    return Verdict(probe["ok"], failures, frozenset(each["model"] for each in versions), probe["reason"])


def _read(process: subprocess.Popen[bytes], lines: queue.Queue[bytes]) -> None:
    if process.stdout is not None:
        for line in process.stdout:
            lines.put(line)
