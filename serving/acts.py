"""The supervisor's acts: a log line and a Prometheus metric each."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from serving.whole import Problem

PREFIX = "vitbn_supervisor"


class Acts:
    """Without metrics if `port` is None. Raises OSError for a taken port."""

    def __init__(self, port: int | None) -> None:
        self._log = logging.getLogger(PREFIX)
        handler = logging.StreamHandler(sys.stderr)
        formatter = logging.Formatter("%(asctime)sZ supervisor: %(message)s", "%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
        self._log.handlers[:] = [handler]
        self._log.setLevel(logging.INFO)
        self._log.propagate = False
        registry = CollectorRegistry()

        def counter(name: str, text: str, labels: Iterable[str] = ()) -> Counter:
            return Counter(f"{PREFIX}_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", text, labels, registry=registry)

        self._starts = counter("server_starts", "Starts of the server")
        self._ends = counter("server_ends", "Ends of the server that nobody asked for", ["reason"])
        self._reloads = counter("model_reloads", "Loads of a failed model", ["model"])
        self._probes = counter("probes", "Probes of the server", ["result"])
        self._swept = counter("swept_processes", "Processes of dead servers that were killed")
        self._swept_bytes = counter("swept_shared_memory_bytes", "Shared memory of dead servers that was removed")
        self._bad = gauge(
            "bad_version", "1 for a version that is not as published ('all': shared files)", ["model", "version"]
        )
        self._healthy = gauge("healthy", "1 if the last probe passed")
        self._gave_up = gauge("gave_up", "1 after too many restarts")
        if port is not None:
            start_http_server(port, addr="127.0.0.1", registry=registry)

    def say(self, text: str) -> None:
        self._log.info("%s", text)

    def started(self, pid: int) -> None:
        self._starts.inc()
        self.say(f"started the server, process {pid}")

    def planned(self, model: str, versions: Iterable[int], problems: Iterable[Problem]) -> None:
        serving = ", ".join(map(str, versions)) or "nothing"
        for problem in problems:
            version = "all" if problem.version is None else str(problem.version)
            self._bad.labels(model, version).set(1)
            self.say(f"model {model}, version {version} is bad: {problem.text}; serving {serving}")

    def forget_plans(self) -> None:
        self._bad.clear()

    def probed(self, ok: bool) -> None:
        self._probes.labels("passed" if ok else "failed").inc()
        self._healthy.set(ok)

    def reloading(self, model: str, reason: str) -> None:
        self._reloads.labels(model).inc()
        self.say(f"model {model} {reason}: loading it again")

    def ended(self, reason: str, detail: str) -> None:
        self._ends.labels(reason).inc()
        self._healthy.set(0)
        self.say(f"the server {reason}: {detail}")

    def swept(self, processes: int, size: int) -> None:
        if processes or size:
            self._swept.inc(processes)
            self._swept_bytes.inc(size)
            self.say(f"swept {processes} processes and {size} bytes of shared memory of the server before")

    def gave_up(self, restarts: int, seconds: float) -> None:
        self._gave_up.set(1)
        self.say(f"giving up after {restarts} restarts within {seconds:g} s")
