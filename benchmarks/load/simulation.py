"""Servers behind a proxy under a day's load with failures: a discrete-event simulation.

In: measured service times, a fleet, the peak rate. Out: latency percentiles, and shares of requests refused, failed or
repeated. As with `vitbn proxy`, a request goes to the less busy of two drawn servers, is refused when the fleet has its
limit in flight, and is repeated elsewhere when its server is down. A server answers one request at a time, in order.

A day has too many requests: an hour is a window, of `requests` requests at the peak. The servers down at its start are
drawn.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from serving.proxy.settings import IN_FLIGHT

WARM = 0.2  # of a window's requests, not counted
TRIES = 3  # of a request
Tried = tuple[int, ...]  # the servers that failed a request


@dataclass(frozen=True)
class Fleet:
    """`in_flight`: the proxy's limit per server."""

    servers: int
    in_flight: int = IN_FLIGHT
    between_failures_s: float = math.inf  # of one server
    repair_s: float = 30.0
    detection_s: float = 0.5  # until the proxy stops using a dead server


@dataclass
class Tally:
    latencies_ms: list[float]
    refused: int = 0
    failed: int = 0
    asked_again: int = 0

    @property
    def requests(self) -> int:
        return len(self.latencies_ms) + self.refused + self.failed

    def row(self) -> dict[str, float | int | None]:
        quantiles = np.percentile(self.latencies_ms, [50, 99]).tolist() if self.latencies_ms else [None, None]
        return {
            "requests": self.requests,
            "p50_ms": quantiles[0],
            "p99_ms": quantiles[1],
            "refused": self.refused / self.requests,
            "failed": self.failed / self.requests,
            "asked_again": self.asked_again / self.requests,
        }


def day_rates(peak: float) -> list[float]:
    """Requests a second in each hour: a cosine from a quarter of the peak at 4 h to the peak at 16 h."""
    return [peak * (0.625 - 0.375 * math.cos(2 * math.pi * (hour - 4) / 24)) for hour in range(24)]


def simulate_day(service_ms: Sequence[float], fleet: Fleet, peak: float, requests: int, seed: int = 0) -> Tally:
    rates = day_rates(peak)
    whole = Tally([])
    for hour, rate in enumerate(rates):
        share = simulate(service_ms, fleet, rate, round(requests * rate / max(rates)), seed * 100 + hour)
        whole.latencies_ms += share.latencies_ms
        whole.refused += share.refused
        whole.failed += share.failed
        whole.asked_again += share.asked_again
    return whole


def simulate(service_ms: Sequence[float], fleet: Fleet, rate: float, requests: int, seed: int = 0) -> Tally:
    """Poisson arrivals, `rate` a second."""
    return _Window(service_ms, fleet, np.random.default_rng(seed)).run(rate, requests)


class _Window:
    """Events are (time, order, kind, server, generation) with kinds end, fail, detect, back."""

    def __init__(self, service_ms: Sequence[float], fleet: Fleet, rng: np.random.Generator) -> None:
        self._fleet, self._rng = fleet, rng
        self._service_s = np.asarray(service_ms, dtype=float) / 1e3
        self._queues: list[deque[tuple[float, Tried, bool]]] = [deque() for _ in range(fleet.servers)]
        self._up = [True] * fleet.servers
        self._seen_up = [True] * fleet.servers
        self._generation = [0] * fleet.servers  # a request under way at a failure never ends
        self._events: list[tuple[float, int, str, int, int]] = []
        self._order = self._in_flight = 0
        self._tally = Tally([])

    def run(self, rate: float, requests: int) -> Tally:
        self._draw_faults()
        arrivals = np.cumsum(self._rng.exponential(1 / rate, requests))
        for number, now in enumerate(arrivals.tolist()):
            self._advance(now)
            counted = number >= WARM * requests
            if self._in_flight >= self._fleet.in_flight * self._fleet.servers:
                self._tally.refused += counted
            else:
                self._in_flight += 1
                self._ask(now, now, (), counted)
        # faults never end, answers do
        while self._in_flight:
            self._advance(self._events[0][0])
        return self._tally

    def _draw_faults(self) -> None:
        fleet = self._fleet
        if math.isinf(fleet.between_failures_s):
            return
        down = fleet.repair_s / (fleet.repair_s + fleet.between_failures_s)
        for server in range(fleet.servers):
            if self._rng.random() < down:
                self._up[server] = self._seen_up[server] = False
                self._at(self._rng.uniform(0, fleet.repair_s), "back", server)
            else:
                self._at(self._rng.exponential(fleet.between_failures_s), "fail", server)

    def _at(self, time_s: float, kind: str, server: int) -> None:
        self._order += 1
        heapq.heappush(self._events, (time_s, self._order, kind, server, self._generation[server]))

    def _advance(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            now, _, kind, server, generation = heapq.heappop(self._events)
            if kind == "end":
                if generation == self._generation[server]:
                    self._end(now, server)
            elif kind == "fail":
                self._fail(now, server)
            elif kind == "detect":
                self._seen_up[server] = self._up[server]
            else:
                self._up[server] = self._seen_up[server] = True
                self._at(now + self._rng.exponential(self._fleet.between_failures_s), "fail", server)

    def _ask(self, now: float, arrived: float, tried: Tried, counted: bool) -> None:
        server = self._choose(tried)
        if server is None:
            self._fail_request(counted)
        elif not self._up[server]:
            self._again(now, arrived, (*tried, server), counted)
        else:
            queue = self._queues[server]
            queue.append((arrived, tried, counted))
            if len(queue) == 1:
                self._start(now, server)

    def _again(self, now: float, arrived: float, tried: Tried, counted: bool) -> None:
        if len(tried) < TRIES:
            self._tally.asked_again += counted
            self._ask(now, arrived, tried, counted)
        else:
            self._fail_request(counted)

    def _fail_request(self, counted: bool) -> None:
        self._in_flight -= 1
        self._tally.failed += counted

    def _choose(self, tried: Tried) -> int | None:
        """The two draws may be equal; only servers that the proxy believes up count, tried ones last."""
        several = self._fleet.servers
        picked = [int(each) for each in self._rng.integers(0, several, 2)] if several > 1 else [0]
        seen = [each for each in picked if self._seen_up[each] and each not in tried]
        if not seen:
            up = [each for each in range(several) if self._seen_up[each]]
            if not up:
                return None
            fresh = [each for each in up if each not in tried] or up
            seen = [fresh[int(self._rng.integers(0, len(fresh)))]]
        return min(seen, key=lambda each: len(self._queues[each]))

    def _start(self, now: float, server: int) -> None:
        self._at(now + float(self._service_s[self._rng.integers(0, len(self._service_s))]), "end", server)

    def _end(self, now: float, server: int) -> None:
        queue = self._queues[server]
        arrived, _, counted = queue.popleft()
        self._in_flight -= 1
        if counted:
            self._tally.latencies_ms.append(1e3 * (now - arrived))
        if queue:
            self._start(now, server)

    def _fail(self, now: float, server: int) -> None:
        """Until the failure is detected, new requests meet it too."""
        lost, self._queues[server] = self._queues[server], deque()
        self._up[server] = False
        self._generation[server] += 1
        self._at(now + self._fleet.detection_s, "detect", server)
        self._at(now + self._fleet.repair_s, "back", server)
        for arrived, tried, counted in lost:
            self._again(now, arrived, (*tried, server), counted)
