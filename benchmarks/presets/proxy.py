"""Runs scenarios against a local `vitbn serve --servers 2`.

Out: a row for each scenario and protocol: requests sent, right, wrong, refused and failed, and latencies in ms.
`hostile` and `added` have other figures. Clients do not retry, so every failure counts.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

import click
import numpy as np
import psutil

from benchmarks.drills import hostile_requests
from benchmarks.drills.checked_requests import Asker, Verdicts, after, image_question, is_close, meanwhile, record_each
from benchmarks.drills.drill_setup import HEAL_S, MODEL, OVERLOAD, OVERLOADED, lives, publish_shipped, wait_until
from benchmarks.drills.running_fleet import RunningFleet, running_fleet
from benchmarks.measure.result_file import Record, Row
from benchmarks.reporting.recorded_decorator import recorded
from clients.errors import ClientError
from serving.model_control_client import Control

STEADY, BEFORE_S, AFTER_S = 4, 1.0, 2.0  # requests in flight; seconds of requests before and after an event
TURNS, TURN = 10, 100  # turns, and requests of a turn, directly to a server and through the proxy
GOOD = 400  # requests after the hostile ones


class BehindProxy(ExitStack):
    """Two servers behind the proxy, with the shipped network MODEL.

    `requests`: at least, during an event. `overload_s`: seconds of an overload.
    """

    def __init__(self, requests: int = 10_000, overload_s: float = 10.0) -> None:
        super().__init__()
        self._requests, self._overload_s = requests, overload_s

    def __enter__(self) -> Self:
        self._repository = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="proxy-")), "models")
        images, logits = publish_shipped(MODEL, self._repository)
        self._images, self._logits = images[:1], logits[:1]
        self._fleet = self.enter_context(running_fleet(self._repository))
        return self

    def run(self, name: str, protocol: str) -> Row:
        """The row of a scenario in EVENTS, or in OVER_HTTP, which has HTTP as its only protocol."""
        wait_until(self._fleet.right)
        row = self._during(EVENTS[name], protocol) if name in EVENTS else OVER_HTTP[name](self)
        return {"scenario": name, "protocol": protocol, **row}

    def _during(self, event: Callable[[RunningFleet], None], protocol: str) -> Row:
        with self._traffic(protocol) as verdicts:
            time.sleep(BEFORE_S)
            started = time.perf_counter()
            event(self._fleet)
            wait_until(self._fleet.right)
            seconds = time.perf_counter() - started
            time.sleep(AFTER_S)
        return {**verdicts.row(), "event_s": seconds}

    def _traffic(self, protocol: str) -> AbstractContextManager[Verdicts]:
        """Sends requests while the `with` block runs, and until enough requests are sent."""
        sent = iter(range(10**9))

        def ask(stopped: Callable[[], bool], verdicts: Verdicts) -> None:
            def until() -> bool:
                return next(sent) >= self._requests + STEADY and stopped()

            if protocol == "http":
                self._asker().closed_loop(STEADY, until, verdicts)
            else:
                self._over_grpc(until, verdicts)

        return meanwhile(ask)

    def _asker(self) -> Asker:
        return Asker(self._fleet.http_url, MODEL, [image_question(self._images, self._logits)])

    def _over_grpc(self, until: Callable[[], bool], verdicts: Verdicts) -> None:
        from clients.classifier import AsyncClassifier, Options

        image = self._images

        async def client(classifier: AsyncClassifier) -> None:
            while not until():
                started = time.perf_counter()
                try:
                    logits = await classifier.logits(image)
                except ClientError:
                    verdicts.failed += 1
                    continue
                if is_close(logits, self._logits):
                    verdicts.right.append((started, time.perf_counter() - started))
                else:
                    verdicts.wrong += 1

        async def work() -> None:
            url = self._fleet.grpc_url
            async with AsyncClassifier(Options(url, "grpc", retry_s=0, concurrency=STEADY), MODEL) as classifier:
                await asyncio.gather(*(client(classifier) for _ in range(STEADY)))

        asyncio.run(work())

    def hostile(self) -> Row:
        servers = [self._fleet.triton(index) for index in range(2)]
        statuses = {name: self._status(*request) for name, request in hostile_requests.requests().items()}
        chunked = self._status(*hostile_requests.chunked())
        right = sum(self._status(*hostile_requests.good(self._images)) == 200 for _ in range(GOOD))
        alive = sum(map(lives, servers))
        row = {"statuses": statuses, "chunks": hostile_requests.CHUNKS, "chunked_status": chunked}
        return {**row, "good_sent": GOOD, "good_right": right, "servers_alive": alive}

    def _status(self, body: bytes, headers: dict[str, str]) -> int:
        return hostile_requests.status(self._fleet.http_url, f"/v2/models/{MODEL}/infer", body, headers)

    def overload(self) -> Row:
        images, logits = publish_shipped(OVERLOADED, self._repository)
        _load(self._fleet, OVERLOADED)
        asker = Asker(self._fleet.http_url, OVERLOADED, [image_question(images, logits)])
        capacity = asker.capacity(8)
        verdicts = asker.open_loop(OVERLOAD * capacity, self._overload_s)
        return {"capacity_per_s": capacity, **verdicts.row()}

    def added(self) -> Row:
        """The time that the proxy adds to a request, and the proxy's memory."""
        through_proxy = self._asker()
        straight = replace(through_proxy, url=self._fleet.server_url(0))
        straight_s, through_s = list[float](), list[float]()
        for _ in range(TURNS):
            for asker, latencies_s in ((straight, straight_s), (through_proxy, through_s)):
                latencies_s += [seconds for _, seconds in asker.closed_loop(1, after(TURN)).right]
        straight_p50_ms, through_p50_ms = (1e3 * float(np.median(values)) for values in (straight_s, through_s))
        processes = psutil.Process(self._fleet.child.pid).children()
        envoy = next(process for process in processes if process.name() == "envoy")
        return {
            "straight_p50_ms": straight_p50_ms,
            "through_p50_ms": through_p50_ms,
            "added_ms": through_p50_ms - straight_p50_ms,
            "proxy_memory_mb": envoy.memory_info().rss / 1e6,
        }


def _load(fleet: RunningFleet, model: str) -> None:
    """Loads the model on the servers one after the other, as `vitbn repository` does with several --server."""
    for index in range(2):
        Control.at(fleet.server_url(index), fleet.server_url(index, "grpc")).load(model)


def _kill_server(fleet: RunningFleet) -> None:
    server = fleet.triton(0)
    server.kill()
    server.wait(HEAL_S)  # before its end a probe may still succeed


def _kill_stub(fleet: RunningFleet) -> None:
    before = fleet.reloads()
    fleet.stub(0).kill()
    wait_until(lambda: fleet.reloads() > before)


def _restart(fleet: RunningFleet) -> None:
    before = fleet.restarts()
    fleet.restart()
    wait_until(lambda: fleet.restarts() > before)


def _publish(fleet: RunningFleet) -> None:
    from export.publishing.artifact import read_version
    from export.publishing.publish import publish

    publish(fleet.repository, MODEL, read_version(fleet.repository / MODEL / "1"))
    _load(fleet, MODEL)


EVENTS: Mapping[str, Callable[[RunningFleet], None]] = {
    "server-killed": _kill_server,
    "stub-killed": _kill_stub,
    "restart": _restart,
    "publish": _publish,
}
OVER_HTTP: Mapping[str, Callable[[BehindProxy], Row]] = {
    "hostile": BehindProxy.hostile,
    "overload": BehindProxy.overload,
    "added": BehindProxy.added,
}
"""Scenarios over HTTP alone."""


NAMES = (*EVENTS, *OVER_HTTP)


@click.command()
@click.option("--scenario", "names", type=click.Choice(NAMES), multiple=True, help="Repeatable.  [default: all]")
@recorded()
def proxy(record: Record, names: tuple[str, ...]) -> None:
    """Break or update one of two servers behind the proxy and count what its clients see."""
    with BehindProxy() as bench:
        for name in names or NAMES:
            protocols = ("http", "grpc") if name in EVENTS else ("http",)
            record_each(record, (bench.run(name, protocol) for protocol in protocols))
