import subprocess
import sys
import time

import pytest

from serving import server_log
from serving.events import Events
from serving.server_log import LINES, ServerLog

CACHE = (
    b"E1126 23:54:56.653774 17653 tritonserver.cc:2607] \"Invalid argument: unable to find 'libtritoncache_foo.so'\"\n"
)
CUDA = b'E1126 23:55:12.434643 18157 server.cc:241] "CudaDriverHelper has not been initialized."\n'


def told(lines: bytes, capfd: pytest.CaptureFixture[str]) -> tuple[ServerLog, list[str], list[str]]:
    """The log, what it passed, what it said."""
    said: list[str] = []
    log = ServerLog(said.append)
    log.writer.write(lines)
    log.started()
    log.ended()
    return log, capfd.readouterr().err.splitlines(), said


def test_the_last_reason_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    log, passed, said = told(CACHE + CUDA + b'I1126 23:54:56.6 1 http_server.cc:1] "Started"\n', capfd)
    assert log.reason == "Invalid argument: unable to find 'libtritoncache_foo.so'"
    assert (log.never_started, len(passed), said) == (False, 3, [])
    log, _, _ = told(b"tritonserver: /models: expected a model repository, found no such folder\n", capfd)
    assert log.never_started
    assert log.reason == "/models: expected a model repository, found no such folder"


def test_a_flood_is_counted_and_other_lines_pass(capfd: pytest.CaptureFixture[str]) -> None:
    flood = [b"[warn] Error from accept() call: Too many open files\n"] * 5000
    flood += [f'W1126 23:54:56.{number} 7 a.cc:1] "retry {number}"\n'.encode() for number in range(500)]
    wanted = [f'I1126 23:54:56.{number} 7 a.cc:1] "request {number}"\n'.encode() for number in range(100)]
    _, passed, said = told(b"".join([*flood, *wanted, CACHE]), capfd)
    assert len(passed) == 2 * LINES + 100 + 1
    assert said[0] == (
        f"left {5000 - LINES} lines of the server out, like: [warn] Error from accept() call: Too many open files"
    )
    assert said[1].startswith(f"left {500 - LINES} lines of the server out, like: a.cc")


def test_a_flood_of_minutes_is_told_of_in_each_window(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_log, "WINDOW_S", 0.2)
    said: list[str] = []
    log = ServerLog(said.append)
    code = (
        "import sys, time\nends = time.monotonic() + 1\nwhile time.monotonic() < ends: print('x' * 80, file=sys.stderr)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stderr=log.writer)
    log.started()
    started = time.monotonic()
    assert child.wait(60) == 0
    log.ended()
    windows = (time.monotonic() - started) / 0.2
    assert 2 <= len(said) <= windows + 1
    assert len(capfd.readouterr().err.splitlines()) <= LINES * (windows + 1)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ["Timeout 3: Found 2 HTTP service connections", "Timeout 1: Found 1 HTTP service connections"],
            "1 HTTP connections",
        ),
        (["Timeout 3: Found 2 HTTP service connections"], None),  # they ended in time
        (["Timeout 1: Found 2 model versions that have in-flight inferences"], "2 models with requests"),
        (["Timeout 1: Found 3 live models and 4 in-flight non-inference requests"], "4 other requests"),
        (["Timeout 1: Found 3 live models and 0 in-flight non-inference requests"], None),
    ],
)
def test_a_stop_tells_what_was_cut_off(
    lines: list[str], expected: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    events = Events(None)
    log, _, _ = told("".join(f'I1127 00:30:52.4 1 server.cc:248] "{line}"\n' for line in lines).encode(), capfd)
    events.cut_off(log.open_at_the_end)
    said = capfd.readouterr().err
    assert said == "" if expected is None else f"after 3 s {expected} were open: they were cut off" in said
