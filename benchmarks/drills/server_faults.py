"""Faults of a server and of its clients. In: a `DrillBench`. Out: a row.

The clients of server-killed-retries retry. All others do not, so every failure counts.
"""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.drills import hostile_requests
from benchmarks.drills.checked_requests import Asker, Verdicts, after, image_question, is_close
from benchmarks.drills.drill_setup import (
    MODEL,
    OVERLOAD,
    OVERLOADED,
    DrillBench,
    lives,
    memory_mb,
    publish_shipped,
    stubs,
    triton,
    wait_for_right_answers,
    wait_until,
    wait_until_right,
    workers,
)
from benchmarks.load.published_candidates import edited_config
from benchmarks.measure.result_file import Row
from clients.probing.server_probe import probe_server
from serving.local_server import Server, running_server
from serving.model_control_client import Control

BEFORE_S, AFTER_S = 2.0, 2.0
SOAK_READING_S, SOAK_PAUSE_S = 5.0, 0.05
RETRIED_S = 15.0  # of requests with retries after the server's death
OVERLOAD_S = 20.0
PUBLICATIONS, REQUESTS = 20, 500  # publications, and right answers after each publication
CONNECTIONS, STRANGER = 500, "127.0.0.2"  # slow connections, and the address that they come from
UNFINISHED = b"POST /api/classify HTTP/1.1\r\nHost: localhost\r\n"
ASK_S = 5.0
UNBOUNDED = "unbounded"
LONE_REQUESTS, TURN = 8_000, 500
LATE_MS = 400.0  # a request whose wake-up is lost sleeps for 500 ms


def heal(bench: DrillBench, fault: Callable[[Server], object]) -> Row:
    """Breaks a server while clients send requests, and waits until its answers are right again."""
    with bench.server() as server, bench.traffic(server) as verdicts:
        time.sleep(BEFORE_S)
        processes = workers(server)
        started = time.perf_counter()
        fault(server)
        wait_until(lambda: not probe_server(server.http_url).ok or workers(server) - processes)
        wait_until_right(server)
        time.sleep(AFTER_S)
        used_mb = memory_mb(server)
    return {**verdicts.row(), "recovery_s": verdicts.recovery_s(started), "memory_mb": used_mb}


def post(server: Server, name: str) -> None:
    """Sends the hostile request `name`, which ends Triton 2.51."""
    hostile_requests.status(server.http_url, f"/v2/models/{MODEL}/infer", *hostile_requests.requests()[name])


def killed_under_clients(bench: DrillBench) -> Row:
    from clients.classifier import Classifier, Options
    from clients.errors import ClientError

    latencies, failed, wrong = list[float](), 0, 0
    with bench.server() as server, Classifier(Options(server.http_url), MODEL) as classifier:
        fault = threading.Timer(BEFORE_S, lambda: triton(server).kill())
        fault.start()
        ends = time.monotonic() + BEFORE_S + RETRIED_S
        while time.monotonic() < ends:
            started = time.perf_counter()
            try:
                logits = classifier.logits(bench.images[:1])
                wrong += not is_close(logits, bench.logits[:1])
            except ClientError:
                failed += 1
            latencies.append(1e3 * (time.perf_counter() - started))
        fault.join()
    counts = {"sent": len(latencies), "right": len(latencies) - failed - wrong, "wrong": wrong, "failed": failed}
    return {**counts, "p50_ms": float(np.median(latencies)), "worst_ms": max(latencies)}


def sigterm(bench: DrillBench) -> Row:
    with bench.server() as server:
        with bench.traffic(server) as verdicts:
            time.sleep(BEFORE_S)
        process = psutil.Process(server.pid)
        family = process.children(recursive=True)
        process.terminate()
        seconds = wait_until(lambda: not lives(process))
    return {**verdicts.row(), "stopped_s": seconds, "orphans": sum(map(lives, family))}


def overload(bench: DrillBench) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        images, logits = publish_shipped(OVERLOADED, repository := Path(folder, "models"))
        with bench.server(repository) as server:
            asker = Asker(server.http_url, OVERLOADED, [image_question(images, logits)])
            capacity, before_mb = asker.capacity(4), memory_mb(server)
            verdicts = asker.open_loop(OVERLOAD * capacity, OVERLOAD_S)
            recovery_s = wait_until(lambda: probe_server(server.http_url).ok)
            grown_mb = memory_mb(server) - before_mb
    return {"capacity_per_s": capacity, **verdicts.row(), "recovery_s": recovery_s, "memory_grown_mb": grown_mb}


def publications(bench: DrillBench) -> Row:
    from export.publishing.artifact import read_version
    from export.publishing.publish import publish

    with bench.repository() as repository, bench.server(repository) as server:
        artifact = read_version(repository / MODEL / "1")
        control = Control.at(server.http_url, server.grpc_url)
        with bench.traffic(server) as verdicts:
            for _ in range(PUBLICATIONS):
                publish(repository, MODEL, artifact)
                control.load(MODEL)
                wait_for_right_answers(verdicts, REQUESTS)
    return {"publications": PUBLICATIONS, **verdicts.row()}


def soak(bench: DrillBench, hours: float) -> Row:
    """Steady requests for `hours`. The slopes of memory and descriptors are those of the second half."""
    readings: list[tuple[float, float, int]] = []  # hours, MB, descriptors
    with bench.server() as server, bench.traffic(server, SOAK_PAUSE_S) as verdicts:
        ends = time.monotonic() + 3600 * hours
        while time.monotonic() < ends:
            descriptors = sum(process.num_fds() for process in (triton(server), *stubs(server)))
            readings.append((time.monotonic() / 3600, memory_mb(server), descriptors))
            time.sleep(min(SOAK_READING_S, 1800 * hours / 10))
    hour, memory, open_files = np.array(readings[len(readings) // 2 :]).T
    slopes = {"memory_mb_per_hour": memory, "descriptors_per_hour": open_files}
    return {
        "hours": hours,
        **verdicts.row(),
        "memory_mb": float(memory[-1]),
        **{name: float(np.polyfit(hour, values, 1)[0]) for name, values in slopes.items()},
    }


def slow_connections() -> dict[str, Any]:
    """The page without Triton keeps CONNECTIONS slow clients, who never finish their requests.

    Returns the row of another visitor's requests, with the worst wait in ms.
    """
    command = [sys.executable, "-m", "clients.web.app", "--port", "0", "--url", "127.0.0.1:1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as page, ExitStack() as stack:
        stack.callback(page.terminate)
        line = page.stdout.readline() if page.stdout else ""
        host, _, port = line.split("http://")[1].split()[0].partition(":")
        for _ in range(CONNECTIONS):
            slow = stack.enter_context(socket.create_connection((host, int(port)), 30, (STRANGER, 0)))
            slow.sendall(UNFINISHED)
        waits_ms, failed, ends = list[float](), 0, time.monotonic() + ASK_S
        while time.monotonic() < ends:
            started = time.perf_counter()
            with closing(http.client.HTTPConnection(host, int(port), timeout=30)) as visitor:
                visitor.request("GET", "/")
                failed += visitor.getresponse().status != 200
            waits_ms.append(1e3 * (time.perf_counter() - started))
    counts = {"sent": len(waits_ms), "right": len(waits_ms) - failed, "wrong": 0, "failed": failed}
    return {"connections": CONNECTIONS, **counts, "worst_ms": max(waits_ms)}


def lone_requests() -> dict[str, Any]:
    """Requests one after the other to a model with the default limit of its queue, and to the model without a limit.

    The models take turns on a server. The row has the counts with the limit, and for both the latencies in ms and how
    many answers exceed LATE_MS.
    """
    from export.publishing.artifact import read_version
    from export.publishing.publish import publish

    with tempfile.TemporaryDirectory(prefix="lone-") as folder:
        repository = Path(folder)
        images, logits = publish_shipped(MODEL, repository)
        publish(repository, UNBOUNDED, read_version(repository / MODEL / "1"))
        with edited_config(repository / UNBOUNDED) as config:
            config.dynamic_batching.ClearField("default_queue_policy")
            del config.instance_group[1:]
        single = image_question(images[:1], logits[:1])
        verdicts = {MODEL: Verdicts(), UNBOUNDED: Verdicts()}
        with running_server(repository) as server:
            for _ in range(LONE_REQUESTS // TURN):
                for name in verdicts:
                    Asker(server.http_url, name, [single]).closed_loop(1, after(TURN), verdicts[name])
    rows = {
        name: {**of_model.row(), "late": sum(1e3 * seconds > LATE_MS for _, seconds in of_model.right)}
        for name, of_model in verdicts.items()
    }
    compared = ("p50_ms", "p99_ms", "worst_ms", "late")
    return {**rows[MODEL], **{f"{UNBOUNDED}_{name}": rows[UNBOUNDED][name] for name in compared}}
