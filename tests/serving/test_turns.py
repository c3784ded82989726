import fcntl
import multiprocessing
import multiprocessing.connection
import os
import time
from contextlib import nullcontext
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from serving.launcher import TURNS_VARIABLE
from serving.turns import Turns, turns

TWO = {"instance_group": [{"count": 1}, {"count": 1}]}


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "locks"
    path.touch()
    monkeypatch.setenv(TURNS_VARIABLE, str(path))
    return path


def hold(path: Path, held: Event) -> None:
    with turns(TWO, path):
        held.set()
        time.sleep(60)


def held_elsewhere(locks: Path) -> bool:
    """Whether another process would wait for `locks`."""
    child = os.fork()
    if child == 0:
        try:
            fcntl.lockf(os.open(locks, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_only_a_model_with_a_standby_takes_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(turns({"instance_group": [{"count": 2}]}, tmp_path), nullcontext)
    assert isinstance(turns(TWO, tmp_path), Turns)
    monkeypatch.setenv(TURNS_VARIABLE, str(tmp_path / "missing"))
    assert isinstance(turns(TWO, tmp_path), nullcontext)
    monkeypatch.delenv(TURNS_VARIABLE)
    assert isinstance(turns(TWO, tmp_path), nullcontext)


def test_servers_with_one_repository_do_not_wait_for_one_another(locks: Path, tmp_path: Path) -> None:
    model, other = tmp_path / "model.onnx", tmp_path / "locks of another server"
    model.touch()
    other.touch()
    with turns(TWO, model):
        assert held_elsewhere(locks)
        assert not held_elsewhere(other)
        assert not held_elsewhere(model)


def test_a_turn_ends_with_its_process(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").touch()
    mine, held = turns(TWO, tmp_path / "model.onnx"), multiprocessing.Event()
    other = multiprocessing.Process(target=hold, args=(tmp_path / "model.onnx", held))
    other.start()
    assert held.wait(60)
    timer = time.monotonic()
    multiprocessing.connection.wait([other.sentinel], timeout=0.2)
    other.kill()
    with mine:
        assert time.monotonic() - timer >= 0.2, "not while the other has its turn"
    other.join()
