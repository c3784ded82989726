"""Two processes, one lock, which ends with its holder."""

import multiprocessing
import time
from contextlib import nullcontext
from multiprocessing.synchronize import Event
from pathlib import Path

from serving.turns import Turns, turns

TWO = {"instance_group": [{"count": 1}, {"count": 1}]}


def hold(path: Path, held: Event) -> None:
    with turns(TWO, path):
        held.set()
        time.sleep(60)


def test_only_a_model_with_a_standby_takes_turns(tmp_path: Path) -> None:
    assert isinstance(turns({"instance_group": [{"count": 2}]}, tmp_path), nullcontext)
    assert isinstance(turns(TWO, tmp_path), Turns)
    assert isinstance(turns(TWO, tmp_path / "missing"), nullcontext)


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
