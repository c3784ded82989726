"""A process that dies while it is loaded: Triton waits for it for ever."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from published_models import published
from waiting import HEAL_S, wait_until

from benchmarks.drills.drill_setup import triton
from clients.probing.server_probe import probe_server
from serving.local_server import Server, running_server
from serving.model_control_client import Control, ControlFailed
from serving.ports import answers
from serving.stub_processes import ServerProcesses, Stub

pytestmark = [pytest.mark.live, pytest.mark.slow]
MODEL = "linear"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("models")
    published(folder, versions=2)
    return folder


@pytest.fixture(scope="module")
def supervised(repository: Path) -> Iterator[Server]:
    with running_server(repository, supervised=True) as server:
        wait_until(lambda: served(server) == {"1", "2"}, "right")
        yield server


def served(server: Server) -> set[str]:
    """The versions that answer right; empty if a version does not."""
    found = probe_server(server.http_url, timeout_s=5)
    return {each.version for each in found.versions} if found.ok else set()


def stubs(server: Server) -> list[Stub]:
    with suppress(psutil.Error, StopIteration, IndexError):  # there is no server now
        return ServerProcesses(triton(server).pid).model_stubs()
    return []


def next_stub(server: Server, act: Callable[[], object], version: int | None = None) -> Stub:
    """The first process that comes after `act`, at once: it is being loaded."""
    before = {stub.process for stub in stubs(server)}
    act()
    deadline = time.monotonic() + HEAL_S
    while True:
        for stub in stubs(server):
            if stub.process not in before and version in (None, stub.version):
                return stub
        assert time.monotonic() < deadline, "no process came"


def deaths(server: Server) -> int:
    return server.log().count("while it was loaded")


@pytest.mark.parametrize("during", ["a heal", "the start"])
def test_a_death_during_a_load_is_seen(supervised: Server, during: str) -> None:
    before = deaths(supervised)
    for _ in range(5):  # a load takes a tenth of a second, and may end before the kill
        wait_until(lambda: served(supervised) == {"1", "2"}, "right before the fault")
        act = triton(supervised).kill if during == "the start" else stubs(supervised)[0].kill
        next_stub(supervised, act).kill()
        with suppress(AssertionError):
            wait_until(lambda: deaths(supervised) > before, "in the log", HEAL_S / 5)
            break
    assert deaths(supervised) > before
    wait_until(lambda: served(supervised) == {"1", "2"}, "right")


def test_a_death_during_an_operators_load_is_seen(supervised: Server, repository: Path) -> None:
    """The load would never end, and no later load of the model."""
    wait_until(lambda: served(supervised) == {"1", "2"}, "right before the fault")
    shutil.copytree(repository / MODEL / "2", repository / MODEL / "3")
    refused = list[ControlFailed]()

    def load() -> None:
        try:
            Control.at(supervised.http_url, supervised.grpc_url).load(MODEL)
        except ControlFailed as error:
            refused.append(error)

    operator = threading.Thread(target=load)
    next_stub(supervised, operator.start, 3).kill()
    operator.join(HEAL_S)
    assert refused
    wait_until(lambda: served(supervised) == {"2", "3"}, "served by another server")
    Control.at(supervised.http_url, supervised.grpc_url).load(MODEL)


def test_a_version_that_dies_twice_is_left_out(tmp_path: Path) -> None:
    """Its processes are stopped, not killed: so the supervisor surely sees whose they are."""
    published(tmp_path, versions=3)
    with running_server(tmp_path, supervised=True) as server:
        wait_until(lambda: served(server) == {"2", "3"} and answers(server.health_url), "right before the fault")
        told = "version 3, lost process"
        next_stub(server, triton(server).kill, 3).process.suspend()
        next_stub(server, lambda: wait_until(lambda: told in server.log(), "in the log"), 3).process.suspend()
        wait_until(lambda: server.log().count(told) == 2, "in the log")
        wait_until(lambda: served(server) == {"1", "2"}, "served without it")
        assert "version 3 is bad" in server.log()
