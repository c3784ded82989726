"""Reports what happens to a supervised server: each event becomes a log line and a Prometheus metric.

In: the supervisor's method calls, a method per kind of event. Out: lines on stderr, metrics at a port of loopback.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from serving.intact_versions import Problem
from serving.parse_triton_arguments import EXIT_TIMEOUT_S
from serving.prober import Verdict
from serving.signal_loop import say

PREFIX = "vitbn_supervisor"


class Events:
    """`port`: where Prometheus reads the metrics; None: log lines only. Raises OSError for a taken port."""

    def __init__(self, port: int | None) -> None:
        self.say = partial(say, "supervisor")
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
        self._warned_of_descriptors = False
        self._was_healthy, self._uncompared = False, set[tuple[str, int]]()
        if port is not None:
            start_http_server(port, addr="127.0.0.1", registry=registry)

    def started(self, pid: int) -> None:
        self._starts.inc()
        self._was_healthy = False
        self.say(f"started the server, process {pid}")

    def planned(self, model: str, versions: Iterable[int], problems: Iterable[Problem]) -> None:
        """The model serves `versions`; `problems` replace its earlier problems."""
        serving = ", ".join(map(str, versions)) or "nothing"
        self._bad.remove_by_labels({"model": model})
        for problem in problems:
            version = "all" if problem.version is None else str(problem.version)
            self._bad.labels(model, version).set(1)
            self.say(f"model {model}, version {version} is bad: {problem.text}; serving {serving}")

    def forget_plans(self) -> None:
        self._bad.clear()

    def probed(self, verdict: Verdict) -> None:
        self._probes.labels("passed" if verdict.ok else "failed").inc()
        self._healthy.set(verdict.ok)
        uncompared = {which for which, state in verdict.states.items() if state == "not compared"}
        for model, version in sorted(uncompared - self._uncompared):
            self.say(f"model {model}, version {version} is not compared: it has no sample beside it")
        self._uncompared |= uncompared
        answers_right = verdict.ok and "busy" not in verdict.states.values()
        if answers_right and not self._was_healthy:
            compared = sorted({model for model, _ in verdict.states.keys() - uncompared})
            result = f"right: {', '.join(compared)}" if compared else "the probe"
            others = ", ".join(f"{model} {version}" for model, version in sorted(uncompared))
            self.say(f"every served version answers {result}{'; not compared: ' if others else ''}{others}")
        if answers_right or not verdict.ok:
            self._was_healthy = answers_right

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

    def cut_off(self, still_open: Mapping[str, int]) -> None:
        """Triton's time to stop was over. `still_open`: kind of connection or request -> number.

        Models that were still loaded are not reported: no client lost an answer by them.
        """
        lost = [f"{count} {kind}" for kind, count in still_open.items() if count and kind != "models"]
        if lost:
            self.say(f"after {EXIT_TIMEOUT_S} s {', '.join(lost)} were open: they were cut off")

    def descriptors(self, used: int, limit: int) -> None:
        """Warns once when over 90 % of the limit are open, and again only after fewer than 50 % were open."""
        if used > 0.9 * limit and not self._warned_of_descriptors:
            self.say(f"the server holds {used} of {limit} descriptors: without more it answers nobody (ulimit -n)")
        if not 0.5 * limit < used <= 0.9 * limit:
            self._warned_of_descriptors = used > 0.9 * limit

    def gave_up(self, reason: str) -> None:
        self._gave_up.set(1)
        self.say(f"giving up: {reason}")
