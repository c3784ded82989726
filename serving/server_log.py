"""Passes a server's log on with a bounded number of lines, and remembers the last reason for a failure.

In: a pipe, which the server and its stubs write to. Out: this process's stderr. Warnings and errors that differ only in
numbers are of the same kind. In each window of time a few lines of a kind pass, and the others are counted: without
free descriptors Triton writes 130,000 lines a second.
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
LONGEST = 1 << 16  # bytes of a line; a longer line is split
DRAIN_S = 0.2  # for the last lines of an ended server
PREFIX = re.compile(rb"^[EWF]\d{4} [\d:.]+ +\d+ ")  # of Triton's warnings and errors; lines of information begin with I
REASON = re.compile(rb"^E\d{4} .*?\] *(.*)|^(?:error: |\S*tritonserver: )(.*)|^ *what\(\): *(.*)")
LAUNCHER = b"tritonserver: "
HELP = b"Usage: tritonserver"  # all of Triton's options, which it prints when it refuses an option
REASON_IN_HELP = re.compile(rb"(?!Usage|\s)(.*[^:\s])\s*$")  # below it; all else but its titles is indented
NOISE = b"CudaDriverHelper"  # on every machine without CUDA
# Triton writes these lines in the last second of a stop.
OPEN = re.compile(rb'"Timeout [01]: Found (\d+) (HTTP|model versions|live models)(?: and (\d+) in-flight)?')
KINDS = {b"HTTP": "HTTP connections", b"model versions": "models with requests", b"live models": "models"}


class ServerLog:
    """Reads the log in a thread. The server writes to `writer`; `say` gets a text for each kind of omitted lines.

    reason:          the last error of Triton, its launcher or C++; empty without an error.
    open_at_the_end: kind of connection or request -> number that Triton still had open at the end of its stop.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        reader, writer = os.pipe()
        self.writer: IO[bytes] = os.fdopen(writer, "wb")
        self.reason, self._is_launchers, self._is_help, self._has_triton_started = "", False, False, False
        self.open_at_the_end: dict[str, int] = {}
        self._say, self._counts, self._since_s = say, Counter[bytes](), time.monotonic()
        self._thread = threading.Thread(target=self._read, args=(os.fdopen(reader, "rb"),), daemon=True)
        self._thread.start()

    @property
    def never_started(self) -> bool:
        """Whether the launcher gave the last reason, or Triton refused an option, and Triton itself never started."""
        return (self._is_launchers or self._is_help) and not self._has_triton_started

    def started(self) -> None:
        """Call it after the server's start. Closes this process's `writer`, so that reading ends with the server."""
        self.writer.close()

    def ended(self) -> None:
        """Call it after the server's end. Waits up to DRAIN_S for its last lines."""
        self._thread.join(DRAIN_S)

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in iter(partial(pipe.readline, LONGEST), b""):
                if self._passes(line):
                    self._understand(line)
                    with suppress(OSError, ValueError):  # a closed terminal
                        os.write(sys.stderr.fileno(), line)
        self._report_omitted()

    def _passes(self, line: bytes) -> bool:
        """Counts the line, and returns whether to pass it on."""
        if time.monotonic() - self._since_s > WINDOW_S or len(self._counts) > KINDS_AT_ONCE:
            self._report_omitted()
        self._has_triton_started = self._has_triton_started or bool(re.match(rb"[IWE]\d{4} ", line))
        if line.startswith((b"I", b"|", b"+")):  # lines of information and tables
            return True
        kind = re.sub(rb"\d+", b"0", PREFIX.sub(b"", line))
        self._counts[kind] += 1
        return self._counts[kind] <= LINES

    def _report_omitted(self) -> None:
        """Ends the window of time."""
        for kind, count in self._counts.items():
            if count > LINES:
                text = kind.decode(errors="replace").strip()[:200]
                self._say(f"left {count - LINES} lines of the server out, like: {text}")
        self._counts.clear()
        self._since_s = time.monotonic()

    def _understand(self, line: bytes) -> None:
        """Remembers the line if it is a reason for a failure, or counts open connections."""
        self._is_help = self._is_help or line.startswith(HELP)
        if match := OPEN.search(line):
            self.open_at_the_end |= {KINDS[match[2]]: int(match[1]), "other requests": int(match[3] or 0)}
        elif NOISE not in line and (reason := (REASON_IN_HELP if self._is_help else REASON).match(line)):
            self._is_launchers = line.startswith(LAUNCHER)
            self.reason = next(filter(None, reason.groups()), b"").decode(errors="replace").strip().strip('" ')
