import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from serving.child import Child, ChildFailed

IGNORES = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True)"


def python(code: str, log: Path | None = None) -> Child:
    return Child([sys.executable, "-IS", "-c", code], log)


def test_its_output_is_in_the_log_and_its_end_in_words(tmp_path: Path) -> None:
    child = python("import sys; print('out', flush=True); sys.exit('error')", tmp_path / "log")
    assert (child.alive(), child.ending, child.stop()) == (False, "", None)
    with pytest.raises(ChildFailed, match="was never started"):
        child.pid  # noqa: B018
    for starts in (1, 2):
        child.start()
        with pytest.raises(ChildFailed, match="stopped with exit code 1"):
            child.wait_until_ready(lambda: False, 20)
        assert (tmp_path / "log").read_text() == starts * "out\nerror\n"


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    child = python(f"{IGNORES}; time.sleep(60)", log := tmp_path / "log")
    child.start()
    child.wait_until_ready(lambda: "ready" in log.read_text(), 20)
    with pytest.raises(ChildFailed, match=r"was not ready after 0\.1 s"):
        child.wait_until_ready(lambda: False, 0.1)
    assert child.alive()
    started = time.monotonic()
    assert child.stop(0.1) == -signal.SIGKILL
    assert time.monotonic() - started < 20
    assert child.ending == "signal 9 (Killed)"


def test_a_dead_child_is_revived_once_in_its_pause() -> None:
    child = python("import time; time.sleep(60)")
    assert not child.revive(), "nobody has started it"
    child.start()
    try:
        assert not child.revive(), "it lives"
        child.stop()
        child.pause_s = 60.0
        assert not child.revive(), "too early"
        child.pause_s = 0.0
        assert child.revive()
        assert (child.alive(), child.starts) == (True, 2)
    finally:
        child.stop()


def test_what_is_left_of_its_session_is_killed(tmp_path: Path) -> None:
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {f'{IGNORES}; time.sleep(60)'!r}])"
    child = python(code, log := tmp_path / "log")
    child.start()
    while "ready" not in log.read_text():
        time.sleep(0.05)
    started = time.monotonic()
    child.stop()
    assert child.kill_session(0.5) == 1
    assert 0.5 <= time.monotonic() - started < 30
    assert child.kill_session() == 0, "nothing is left"


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
