"""Where drills happen: a supervised server with two versions of MODEL, and clients that check every answer."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.drills.checked_requests import Asker, Verdicts, image_question, meanwhile
from benchmarks.measure.run import Row
from clients.probing.asking import probe_server
from serving.local_server import Server, running_server
from serving.processes import ServerProcesses

MODEL = "vitbn-tiny"
STEADY = 3  # requests in flight around a fault
HEAL_S = 120.0
BATCH = 64
OVERLOADED = "vitbn"  # its requests cost the server more than the client, which sends OVERLOAD times its capacity
OVERLOAD = 5.0
RESTARTED, RELOADED = "started the server", "is loaded again"  # words of the supervisor's log


class DrillBench(ExitStack):
    """A repository to copy and servers to break. `images`: uint8 (BATCH, 1, 28, 28); `logits`: MODEL's answers."""

    def __enter__(self) -> Self:
        self._folder = self.enter_context(tempfile.TemporaryDirectory(prefix="faults-"))
        self._repository = Path(self._folder, "source")
        self.images, self.logits = published(MODEL, self._repository, versions=2)
        return self

    @contextmanager
    def repository(self) -> Iterator[Path]:
        """A copy of the repository, which has two versions of MODEL; by default both are served."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            yield Path(shutil.copytree(self._repository, Path(folder, "models")))

    @contextmanager
    def server(self, repository: Path | None = None) -> Iterator[Server]:
        """A supervised server; yields once its answers are right."""
        with self.repository() as copy, running_server(repository or copy, supervised=True, timeout_s=HEAL_S) as server:
            wait_until_right(server)
            yield server

    def traffic(self, server: Server, pause_s: float = 0) -> AbstractContextManager[Verdicts]:
        """Sends requests to MODEL until the block ends, and checks every answer."""
        asker = Asker(server.http_url, MODEL, [image_question(self.images[:1], self.logits[:1])])
        return meanwhile(lambda until, verdicts: asker.closed_loop(STEADY, until, verdicts, pause_s))


Drill = Callable[[DrillBench], Row]


def published(model: str, repository: Path, versions: int = 1) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Publishes `model` with all rewrites; returns images (BATCH, 1, 28, 28) and logits (BATCH, classes)."""
    from export.checkpoint_to_onnx import Form, export
    from export.equivalence import onnx_classifier
    from export.publishing.publish import publish
    from export.sample_images import embedded_sample
    from models.catalog import shipped
    from models.checkpoints.checkpoint import load

    exported = export(load(shipped(model)), Form("all"))
    for _ in range(versions):
        publish(repository, model, exported.artifact)
    images = embedded_sample(exported.config).images[:BATCH]
    return images, onnx_classifier(exported.onnx)(images).astype(np.float32)


def triton(server: Server) -> psutil.Process:
    return triton_of(psutil.Process(server.pid))


def triton_of(supervisor: psutil.Process) -> psutil.Process:
    """The server's process below its supervisor. Raises StopIteration while no server runs."""
    return next(child for child in supervisor.children() if Path(child.cmdline()[0]).name == "tritonserver")


def stubs(server: Server) -> list[psutil.Process]:
    return [stub.process for stub in ServerProcesses(triton(server).pid).model_stubs()]


def workers(server: Server) -> set[int]:
    """The server's process and its stubs; empty while there is no server."""
    with suppress(psutil.Error, StopIteration, IndexError):
        return {triton(server).pid, *(each.pid for each in stubs(server))}
    return set()


def prober(server: Server) -> psutil.Process:
    """Waits for the prober: the server may answer before its supervisor has started it."""

    living: list[psutil.Process] = []

    def lives_one() -> bool:
        with suppress(psutil.Error):  # a child has just ended
            children = psutil.Process(server.pid).children()
            living[:] = [each for each in children if lives(each) and "clients.probe" in each.cmdline()]
        return bool(living)

    wait_until(lives_one)
    return living[0]


def memory_mb(server: Server) -> float:
    return float(sum(each.memory_info().rss for each in (triton(server), *stubs(server))) / 1e6)


def lives(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


def acts(server: Server) -> Row:
    """How often the supervisor restarted the server, and loaded a model again."""
    log = server.log()
    return {"restarts": log.count(RESTARTED) - 1, "reloads": log.count(RELOADED)}


def wait_until_right(server: Server) -> None:
    wait_until(lambda: probe_server(server.http_url, timeout_s=5).ok)


def wait_until(condition: Callable[[], object]) -> float:
    """Seconds until `condition()`; raises TimeoutError after HEAL_S."""
    started = time.perf_counter()
    while not condition():
        if time.perf_counter() - started > HEAL_S:
            raise TimeoutError(f"expected the server to change within {HEAL_S:g} s")
        time.sleep(0.05)
    return time.perf_counter() - started
