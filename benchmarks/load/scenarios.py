"""The scenarios of benchmarks/faults.py.

In: a scenario's name. Out: its row. Only server-killed-retries retries: elsewhere every failure counts.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.load import supervised_faults
from benchmarks.load.lone_requests import lone_requests
from benchmarks.load.slow_connections import slow_connections
from benchmarks.load.verdicts import TOLERANCE, Asker, Verdicts, meanwhile
from clients.probe import probe_server
from export.publishing.artifact import read_version
from export.publishing.publish import publish
from serving.control import Control
from serving.processes import Family
from serving.running import Server, running_server

Row = dict[str, Any]
MODEL, DEFAULT = "vitbn-tiny", "vitbn"
STEADY = 3  # requests in flight around a fault
BEFORE_S, AFTER_S, HEAL_S = 2.0, 2.0, 120.0
OVERLOAD, OVERLOAD_BATCH, CAPACITY_S = 5.0, 64, 3.0
SOAK_LOOK_S, SOAK_PAUSE_S = 5.0, 0.05
RETRIED_S = 15.0  # of requests after the server's death
REQUESTS = 500  # between two publications


class Faults:
    def __init__(self, publications: int, overload_seconds: float, minutes: float = 10.0) -> None:
        self._publications, self._overload_seconds, self._minutes = publications, overload_seconds, minutes
        self._folder = tempfile.TemporaryDirectory(prefix="faults-")
        self._repository = Path(self._folder.name, "source")

    def __enter__(self) -> Faults:
        from export.equivalence import embedded_sample, onnx_classifier
        from export.graph import export
        from export.rewrites.pipeline import ALL
        from models.catalog import shipped
        from models.checkpoint import load

        exported = export(load(shipped(MODEL)), ALL)
        for _ in range(2):
            publish(self._repository, MODEL, exported.artifact)
        self._images = embedded_sample(exported.config).images[:OVERLOAD_BATCH]
        self._logits = onnx_classifier(exported.onnx)(self._images).astype(np.float32)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def run(self, name: str) -> Row:
        healing = {
            "stub-killed": lambda server: _stubs(server)[0].kill(),
            "stub-stopped": lambda server: _stubs(server)[0].suspend(),
            "server-killed": lambda server: _triton(server).kill(),
            "nested-json": _nested_json,
            "huge-shape": _huge_shape,
        }
        if name in healing:
            return {"scenario": name, **self._heal(healing[name])}
        others: dict[str, Callable[[], Row]] = {
            "newest-broken": self._newest_broken,
            "sigterm": self._sigterm,
            "overload": self._overload,
            "publish": self._publish,
            "server-killed-retries": self._killed_under_clients,
            "slow-connections": slow_connections,
            "lone-requests": lone_requests,
            "answers-nan": partial(supervised_faults.answers_nan, self),
            "disk-full": partial(supervised_faults.disk_full, self),
            "clock-jump": partial(supervised_faults.clock_jump, self),
            "slow-probe": partial(supervised_faults.slow_probe, self),
            "two-supervisors": partial(supervised_faults.two_supervisors, self),
            "many-faults": partial(supervised_faults.many_faults, self, self._minutes),
        }
        return {"scenario": name, **others[name]()}

    def soak(self, hours: float) -> Row:
        """Steady requests; slopes over the second half."""
        with self.server() as server:
            looks: list[tuple[float, float, int]] = []

            def look() -> None:
                family = [_triton(server), *_stubs(server)]
                memory_mb = sum(each.memory_info().rss for each in family) / 1e6
                looks.append((time.monotonic() / 3600, memory_mb, sum(each.num_fds() for each in family)))

            with self.traffic(server, SOAK_PAUSE_S) as verdicts:
                ends = time.monotonic() + 3600 * hours
                while time.monotonic() < ends:
                    look()
                    time.sleep(min(SOAK_LOOK_S, 1800 * hours / 10))
            hour, memory, descriptors = np.array(looks[len(looks) // 2 :]).T
        slopes = {"memory_mb_per_hour": memory, "descriptors_per_hour": descriptors}
        return {
            "scenario": "soak",
            "hours": hours,
            **verdicts.row(),
            "memory_mb": float(memory[-1]),
            **{name: float(np.polyfit(hour, values, 1)[0]) for name, values in slopes.items()},
        }

    @contextmanager
    def repository(self) -> Iterator[Path]:
        """A copy."""
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            yield Path(shutil.copytree(self._repository, Path(folder, "models")))

    @contextmanager
    def server(self, repository: Path | None = None) -> Iterator[Server]:
        """Yields once the answers are right."""
        with self.repository() as copy, running_server(repository or copy, supervised=True, timeout_s=HEAL_S) as server:
            _wait_until_right(server)
            yield server

    def _asker(self, server: Server, batch: int = 1) -> Asker:
        return Asker(server.http_url, MODEL, self._images[:batch], self._logits[:batch])

    def traffic(self, server: Server, pause_s: float = 0) -> AbstractContextManager[Verdicts]:
        asker = self._asker(server)
        return meanwhile(lambda until, verdicts: asker.closed_loop(STEADY, until, verdicts, pause_s))

    def _heal(self, fault: Callable[[Server], object]) -> Row:
        with self.server() as server, self.traffic(server) as verdicts:
            time.sleep(BEFORE_S)
            first = _workers(server)
            started = time.perf_counter()
            fault(server)
            _wait_until(lambda: not probe_server(server.http_url).ok or _workers(server) - first)
            _wait_until_right(server)
            time.sleep(AFTER_S)
            memory_mb = _memory_mb(server)
        return {**verdicts.row(), "recovery_s": verdicts.recovery_s(started), "memory_mb": memory_mb}

    def _newest_broken(self) -> Row:
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            repository = Path(shutil.copytree(self._repository, Path(folder, "models")))
            (repository / MODEL / "2" / "model.onnx").write_bytes(b"")
            started = time.perf_counter()
            with running_server(repository, supervised=True, timeout_s=HEAL_S) as server:
                _wait_until_right(server)
                recovery_s = time.perf_counter() - started
                with self.traffic(server) as verdicts:
                    time.sleep(AFTER_S)
                versions = sorted(version.version for version in probe_server(server.http_url).versions)
        return {**verdicts.row(), "recovery_s": recovery_s, "served": versions}

    def _sigterm(self) -> Row:
        with self.server() as server:
            with self.traffic(server) as verdicts:
                time.sleep(BEFORE_S)
            process = psutil.Process(server.pid)
            family = process.children(recursive=True)
            started = time.perf_counter()
            process.terminate()
            _wait_until(lambda: not _lives(process))
            seconds = time.perf_counter() - started
        return {**verdicts.row(), "stopped_s": seconds, "orphans": sum(map(_lives, family))}

    def _overload(self) -> Row:
        """Requests to the default model cost the server more than the client."""
        with tempfile.TemporaryDirectory(dir=self._folder.name) as folder:
            logits = _publish_default(Path(folder, "models"), self._images)
            with running_server(Path(folder, "models"), supervised=True, timeout_s=HEAL_S) as server:
                _wait_until_right(server)
                asker = Asker(server.http_url, DEFAULT, self._images, logits)
                ends = time.monotonic() + CAPACITY_S
                capacity = len(asker.closed_loop(4, lambda: time.monotonic() > ends).right) / CAPACITY_S
                before_mb = _memory_mb(server)
                verdicts = asker.open_loop(OVERLOAD * capacity, self._overload_seconds)
                recovery_s = _wait_until(lambda: probe_server(server.http_url).ok)
                grown_mb = _memory_mb(server) - before_mb
        return {"capacity_per_s": capacity, **verdicts.row(), "recovery_s": recovery_s, "memory_grown_mb": grown_mb}

    def _killed_under_clients(self) -> Row:
        from clients.classifier import Classifier, Options
        from clients.errors import ClientError

        latencies, failed, wrong = list[float](), 0, 0
        with self.server() as server, Classifier(Options(server.http_url), MODEL) as classifier:
            fault = threading.Timer(BEFORE_S, lambda: _triton(server).kill())
            fault.start()
            ends = time.monotonic() + BEFORE_S + RETRIED_S
            while time.monotonic() < ends:
                started = time.perf_counter()
                try:
                    logits = classifier.logits(self._images[:1])
                    wrong += not np.allclose(logits, self._logits[:1], rtol=0, atol=TOLERANCE)
                except ClientError:
                    failed += 1
                latencies.append(1e3 * (time.perf_counter() - started))
            fault.join()
        counts = {"sent": len(latencies), "right": len(latencies) - failed - wrong, "wrong": wrong, "failed": failed}
        return {**counts, "p50_ms": float(np.median(latencies)), "worst_ms": max(latencies)}

    def _publish(self) -> Row:
        with self.server() as server:
            repository = Path(
                next(word for word in psutil.Process(server.pid).cmdline() if "repository=" in word).partition("=")[2]
            )
            artifact = read_version(repository / MODEL / "1")
            live = Control(server.http_url, grpc_url=server.grpc_url)
            with self.traffic(server) as verdicts:
                for number in range(1, self._publications + 1):
                    publish(repository, MODEL, artifact)
                    live.load(MODEL)
                    _wait_until(partial(_has_answers, verdicts, number * REQUESTS))
        return {"publications": self._publications, **verdicts.row()}


def _has_answers(verdicts: Verdicts, count: int) -> bool:
    return len(verdicts.right) >= count


def _triton(server: Server) -> psutil.Process:
    children = psutil.Process(server.pid).children()
    return next(child for child in children if Path(child.cmdline()[0]).name == "tritonserver")


def _stubs(server: Server) -> list[psutil.Process]:
    return [stub.process for stub in Family(_triton(server).pid).look()]


def _workers(server: Server) -> set[int]:
    """The server's process and its stubs; empty while there is no server."""
    with suppress(psutil.Error, StopIteration, IndexError):
        return {_triton(server).pid, *(each.pid for each in _stubs(server))}
    return set()


def _memory_mb(server: Server) -> float:
    return float(sum(each.memory_info().rss for each in (_triton(server), *_stubs(server))) / 1e6)


def _lives(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


def _nested_json(server: Server) -> None:
    """Ends Triton 2.51."""
    _post(server, b"[" * 150_000)


def _post(server: Server, body: bytes) -> None:
    import http.client

    gone = suppress(OSError, http.client.HTTPException)
    with closing(http.client.HTTPConnection(server.http_url, timeout=20)) as connection, gone:
        connection.request("POST", f"/v2/models/{MODEL}/infer", body, {"Content-Type": "application/json"})
        connection.getresponse()


def _huge_shape(server: Server) -> None:
    """Announces 2^31 images, holds one: ends Triton 2.51."""
    tensor = {"name": "image", "shape": [2**31, 1, 28, 28], "datatype": "UINT8", "data": [0] * 784}
    _post(server, json.dumps({"inputs": [tensor]}).encode())


def _publish_default(repository: Path, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    from export.equivalence import onnx_classifier
    from export.graph import export
    from export.rewrites.pipeline import ALL
    from models.catalog import shipped
    from models.checkpoint import load

    exported = export(load(shipped(DEFAULT)), ALL)
    publish(repository, DEFAULT, exported.artifact)
    return onnx_classifier(exported.onnx)(images).astype(np.float32)


def _wait_until_right(server: Server) -> None:
    _wait_until(lambda: probe_server(server.http_url, timeout_s=5).ok)


def _wait_until(condition: Callable[[], object]) -> float:
    """Seconds until `condition()`; raises TimeoutError after HEAL_S."""
    started = time.perf_counter()
    while not condition():
        if time.perf_counter() - started > HEAL_S:
            raise TimeoutError(f"expected the server to change within {HEAL_S:g} s")
        time.sleep(0.05)
    return time.perf_counter() - started
