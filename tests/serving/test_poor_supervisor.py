"""A supervisor that gets no descriptor for a while, or whose child cannot be started, goes on."""

import resource
import shutil
from pathlib import Path

import psutil
import pytest
from published_models import published
from waiting import wait_until

from benchmarks.drills.drill_bench import lives, triton
from clients.probing.server_probe import probe_server
from serving.child import Child
from serving.local_server import running_server


@pytest.mark.live
def test_a_supervisor_without_descriptors_starts_a_server_once_it_has_them(tmp_path: Path) -> None:
    published(tmp_path, versions=1)
    with running_server(tmp_path, supervised=True) as server:

        def right() -> bool:
            return probe_server(server.http_url, timeout_s=5).ok

        wait_until(right, "right")
        first, supervisor = triton(server), psutil.Process(server.pid)
        family = first.children(recursive=True)
        soft, hard = supervisor.rlimit(resource.RLIMIT_NOFILE)
        supervisor.rlimit(resource.RLIMIT_NOFILE, (3, hard))
        first.kill()
        wait_until(lambda: "next start in" in server.log(), "a second try")
        assert "Too many open files" in server.log()
        assert not [each for each in family if lives(each)]
        supervisor.rlimit(resource.RLIMIT_NOFILE, (soft, hard))
        wait_until(right, "right")
        assert supervisor.is_running()
        assert "Traceback" not in server.log()


def test_a_child_that_cannot_be_started_is_started_later(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    child = Child(["sleep", "60"], folder / "log")
    child.start()
    try:
        shutil.rmtree(folder)
        child.stop()
        assert not child.revive()
        folder.mkdir()
        assert child.revive()
        assert child.alive()
    finally:
        child.stop()
