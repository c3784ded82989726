"""The servers that drills break: supervised, with two versions of MODEL, and with clients that check every answer."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.drills.checked_requests import Asker, Verdicts, image_question, meanwhile
from benchmarks.measure.result_file import Row
from clients.probing.server_probe import probe_server
from serving.local_server import Server, running_server
from serving.stub_processes import ServerProcesses

MODEL = "vitbn-tiny"
STEADY = 3  # requests in flight around a fault
HEAL_S = 120.0
BATCH = 64
OVERLOADED = "vitbn"  # requests to this model cost the server more than the client
OVERLOAD = 5.0  # requests of an overload, as a multiple of the server's capacity
RESTARTED, RELOADED = "started the server", "is loaded again"  # in the supervisor's log


class DrillBench(ExitStack):
    """A repository to copy and servers to break.

    `images`: uint8 (BATCH, 1, 28, 28). `logits`: MODEL's answers, float32 (BATCH, classes).
    """

    def __enter__(self) -> Self:
        self._folder = self.enter_context(tempfile.TemporaryDirectory(prefix="faults-"))
        self._repository = Path(self._folder, "source")
        self.images, self.logits = publish_shipped(MODEL, self._repository, versions=2)
        return self

    @contextmanager
    def repository(self) -> Iterator[Path]:
        """A copy of the repository. It serves both versions of MODEL."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            yield Path(shutil.copytree(self._repository, Path(folder, "models")))

    @contextmanager
    def server(self, repository: Path | None = None) -> Iterator[Server]:
        """A supervised server, which already answers correctly. `repository`: by default a new copy."""
        with self.repository() as copy, running_server(repository or copy, supervised=True, timeout_s=HEAL_S) as server:
            wait_until_right(server)
            yield server

    def traffic(self, server: Server, pause_s: float = 0) -> AbstractContextManager[Verdicts]:
        """Sends requests to MODEL while the `with` block runs, and checks every answer."""
        asker = Asker(server.http_url, MODEL, [image_question(self.images[:1], self.logits[:1])])
        return meanwhile(lambda until, verdicts: asker.closed_loop(STEADY, until, verdicts, pause_s))


Drill = Callable[[DrillBench], Row]


def publish_shipped(model: str, repository: Path, versions: int = 1) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Publishes a shipped network with all rewrites.

    Returns images uint8 (BATCH, 1, 28, 28) and their logits float32 (BATCH, classes).
    """
    from export.checkpoint_to_onnx import Form, export
    from export.compare_logits import onnx_classifier
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
    """Triton's process. Raises StopIteration while it does not run."""
    return triton_of(psutil.Process(server.pid))


def triton_of(supervisor: psutil.Process) -> psutil.Process:
    """Triton's process below its supervisor. Raises StopIteration while it does not run."""
    return next(child for child in supervisor.children() if Path(child.cmdline()[0]).name == "tritonserver")


def stubs(server: Server) -> list[psutil.Process]:
    """The processes of Triton's Python backend, which run the models."""
    return [stub.process for stub in ServerProcesses(triton(server).pid).model_stubs()]


def workers(server: Server) -> set[int]:
    """The process ids of Triton and its stubs; empty while Triton does not run."""
    with suppress(psutil.Error, StopIteration, IndexError):
        return {triton(server).pid, *(stub.pid for stub in stubs(server))}
    return set()


def prober(server: Server) -> psutil.Process:
    """The supervisor's prober. Waits for it: the server may answer before the supervisor has started its prober."""
    probers: list[psutil.Process] = []

    def is_running() -> bool:
        with suppress(psutil.Error):  # a child has just ended
            children = psutil.Process(server.pid).children()
            probers[:] = [child for child in children if lives(child) and "clients.probe" in child.cmdline()]
        return bool(probers)

    wait_until(is_running)
    return probers[0]


def memory_mb(server: Server) -> float:
    """Resident memory of Triton and its stubs."""
    return float(sum(process.memory_info().rss for process in (triton(server), *stubs(server))) / 1e6)


def lives(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


def supervisor_actions(server: Server) -> Row:
    """How often the supervisor restarted the server, and loaded a model again, by its log."""
    log = server.log()
    return {"restarts": log.count(RESTARTED) - 1, "reloads": log.count(RELOADED)}


def supervisor_command(repository: Path, ports: Sequence[int]) -> list[str]:
    """Starts a further supervisor. `ports`: of its server, for HTTP, gRPC and metrics."""
    command = [sys.executable, "-m", "serving.serve", "--supervised", "--supervisor-port=0"]
    command += [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)]
    return [*command, f"--model-repository={repository}"]


def wait_until_right(server: Server) -> None:
    wait_until(lambda: probe_server(server.http_url, timeout_s=5).ok)


def wait_for_right_answers(verdicts: Verdicts, count: int) -> None:
    """Waits until `count` more answers are right. Raises TimeoutError if no answer is right for HEAL_S."""
    goal = len(verdicts.right) + count
    while (right := len(verdicts.right)) < goal:
        wait_until(lambda: len(verdicts.right) > right)


def wait_until(condition: Callable[[], object]) -> float:
    """Waits until `condition()` is true, and returns the seconds that passed. Raises TimeoutError after HEAL_S."""
    started = time.perf_counter()
    while not condition():
        if time.perf_counter() - started > HEAL_S:
            raise TimeoutError(f"expected the server to change within {HEAL_S:g} s")
        time.sleep(0.05)
    return time.perf_counter() - started
