import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from common.repository import served_versions, versions
from export.publishing.artifact import read_version
from export.publishing.publish import read_config, sweep
from serving.local_server import running_server

PUBLISHERS = """
import os, signal, sys
from pathlib import Path
from export.publishing.artifact import read_version
from export.publishing.publish import publish
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no child is left as a zombie
folder, artifact = Path(sys.argv[1]), read_version(Path(sys.argv[2]))
publish(folder / "elsewhere", "vitbn", artifact)  # so that the imports are done
for count in sys.stdin:
    if child := os.fork():
        print(child, flush=True)
        continue
    with open(folder / f"{os.getpid()}.published", "w") as file:
        for _ in range(int(count)):
            print(publish(folder / "repository", "vitbn", artifact).name, file=file, flush=True)
    os._exit(0)
"""
PATIENCE_S = 60


class Publishers:
    """Children of one process: imports take two seconds."""

    def __init__(self, folder: Path, version: Path) -> None:
        command = [sys.executable, "-c", PUBLISHERS, str(folder), str(version)]
        self._parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._folder = folder

    def start(self, count: int) -> int:
        """The id of a process that publishes `count` times."""
        print(count, file=self._parent.stdin, flush=True)
        assert self._parent.stdout
        return int(self._parent.stdout.readline())

    def published(self, pid: int) -> list[int]:
        file = self._folder / f"{pid}.published"
        return [int(line) for line in file.read_text().split()] if file.is_file() else []

    def end(self) -> None:
        self._parent.communicate(timeout=PATIENCE_S)


@pytest.fixture
def publishers(tmp_path: Path, repository: Path) -> Iterator[Publishers]:
    processes = Publishers(tmp_path, repository / "vitbn" / "1")
    yield processes
    processes.end()


def test_many_publishers_lose_nothing(publishers: Publishers, tmp_path: Path) -> None:
    pids = [publishers.start(10) for _ in range(3)]
    publishers.end()
    numbers = [number for pid in pids for number in publishers.published(pid)]
    assert sorted(numbers) == list(range(1, 31))
    model_dir = tmp_path / "repository" / "vitbn"
    assert versions(model_dir) == list(range(1, 31))
    assert all(read_version(model_dir / str(number)).data for number in numbers)
    assert served_versions(read_config(model_dir), numbers) == [29, 30]


@pytest.mark.live
def test_a_publisher_killed_at_any_moment_leaves_a_repository_that_serves(
    publishers: Publishers, tmp_path: Path
) -> None:
    model_dir, seen = tmp_path / "repository" / "vitbn", 0
    for delay_s in (0.0, 0.003, 0.012, 0.03, 0.1, None):
        pid = publishers.start(1_000_000)
        time.sleep(delay_s or 0)
        deadline = time.monotonic() + PATIENCE_S
        while delay_s is None and not publishers.published(pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process = psutil.Process(pid)
        process.kill()
        process.wait(PATIENCE_S)
        assert [path.name for path in (tmp_path / "repository").glob("[!.]*")] in ([], ["vitbn"])
        if not model_dir.is_dir():
            continue
        present = versions(model_dir)
        assert len(present) >= seen, "none is lost"
        assert served_versions(read_config(model_dir), present)
        for number in present[seen:]:
            read_version(model_dir / str(number))  # raises if a file differs from its manifest
        seen = len(present)
    assert seen
    sweep(tmp_path / "repository")
    assert not [path for path in tmp_path.rglob(".*") if path.name != ".lock"]
    with running_server(tmp_path / "repository", ["--disable-auto-complete-config"]) as server:
        assert "READY" in server.log()
