"""Passes on what a server and its processes write, but bounds it, and keeps the last reason for a failure.

In: a pipe, which the server writes to. Out: this process's stderr. Warnings and errors that differ in numbers alone are
of one kind: in each window of time a few lines of a kind pass, the others are counted. Without free descriptors Triton
writes 130,000 lines a second.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import IO

LINES, WINDOW_S, KINDS_AT_ONCE = 20, 10.0, 1000  # lines of a kind that pass in a window; kinds counted at a time
LONGEST = 1 << 16  # bytes of a line
DRAIN_S = 0.2  # for the last lines of an ended server
PREFIX = re.compile(rb"^[EWF]\d{4} [\d:.]+ +\d+ ")  # Triton's; informing lines begin with I
REASON = re.compile(rb"^E\d{4} .*?\] *(.*)|^(?:error: |tritonserver: )(.*)|^ *what\(\): *(.*)")
LAUNCHER = b"tritonserver: "
NOISE = b"CudaDriverHelper"  # on every machine without CUDA
# What Triton writes in the last second of a stop.
OPEN = re.compile(rb'"Timeout [01]: Found (\d+) (HTTP|model versions|live models)(?: and (\d+) in-flight)?')
KINDS = {b"HTTP": "HTTP connections", b"model versions": "models with requests", b"live models": "models"}


class ServerLog:
    """Takes what is written to `writer`; `say` is told how many lines were left out."""

    def __init__(self, say: Callable[[str], None]) -> None:
        reader, writer = os.pipe()
        self.writer: IO[bytes] = os.fdopen(writer, "wb")
        self.reason, self._told_by_launcher, self._is_triton = "", False, False
        self.open_at_the_end: dict[str, int] = {}
        self._say, self._passed, self._since_s = say, Counter[bytes](), time.monotonic()
        self._thread = threading.Thread(target=self._read, args=(os.fdopen(reader, "rb"),), daemon=True)
        self._thread.start()

    @property
    def by_launcher(self) -> bool:
        """Whether the last reason is the launcher's: Triton itself was never started."""
        return self._told_by_launcher and not self._is_triton

    def started(self) -> None:
        """Closes this process's end for writing: with it open, reading would not end with the server."""
        self.writer.close()

    def ended(self) -> None:
        self._thread.join(DRAIN_S)

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in iter(partial(pipe.readline, LONGEST), b""):
                if self._passes(line):
                    self._understand(line)
                    with suppress(OSError, ValueError):  # a terminal that is gone
                        os.write(sys.stderr.fileno(), line)
        self._tell()

    def _passes(self, line: bytes) -> bool:
        if time.monotonic() - self._since_s > WINDOW_S or len(self._passed) > KINDS_AT_ONCE:
            self._tell()
        self._is_triton = self._is_triton or bool(re.match(rb"[IWE]\d{4} ", line))
        if line.startswith((b"I", b"|", b"+")):  # Triton informs, also in tables
            return True
        kind = re.sub(rb"\d+", b"0", PREFIX.sub(b"", line))
        self._passed[kind] += 1
        return self._passed[kind] <= LINES

    def _tell(self) -> None:
        for kind, count in self._passed.items():
            if count > LINES:
                text = kind.decode(errors="replace").strip()[:200]
                self._say(f"left {count - LINES} lines of the server out, like: {text}")
        self._passed.clear()
        self._since_s = time.monotonic()

    def _understand(self, line: bytes) -> None:
        if found := OPEN.search(line):
            self.open_at_the_end |= {KINDS[found[2]]: int(found[1]), "other requests": int(found[3] or 0)}
        elif NOISE not in line and (reason := REASON.match(line)):
            self._told_by_launcher = line.startswith(LAUNCHER)
            self.reason = next(filter(None, reason.groups()), b"").decode(errors="replace").strip().strip('" ')
