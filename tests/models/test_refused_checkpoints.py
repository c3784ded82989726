"""Files that are no checkpoints are refused in one line; those that try to cost memory or time, at once."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hostile import FILES
from refused_files import REFUSED
from saved_networks import refusal, write_pth

from models.checkpoints.checkpoint import CheckpointError, load

MAX_MB = 500
MAX_SECONDS = 7.0  # processor time; measured: at most 1.3


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_is_no_checkpoint_is_refused_with_its_reason(tmp_path, name):
    write, said = REFUSED[name]
    write(tmp_path / "notes.pth")
    assert said in refusal(tmp_path / "notes.pth")


class Harmful:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_that_runs_code_does_not(tmp_path):
    path = write_pth(tmp_path / "harmful.pth", {"cls_token": Harmful(tmp_path / "harm")})
    assert "expected a state dict of only tensors" in refusal(path)
    assert not (tmp_path / "harm").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "harm").exists(), "the pickle is harmful"


def measure(folder: Path) -> dict[str, dict[str, object]]:
    """Peak memory only rises, so the first bomb to burst shows."""

    def too_long(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 34, 1 << 34))  # protects the machine
    measured = {}
    for name in FILES:
        signal.alarm(60)
        start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            load(folder / name)
            answer = "loaded"
        except CheckpointError as error:
            answer = str(error)
        except (Exception, TimeoutError) as error:
            answer = f"{type(error).__name__} is no CheckpointError: {error}"
        seconds = time.process_time() - start
        peak_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        measured[name] = {"answer": answer, "seconds": seconds, "peak_mb": peak_mb}
    signal.alarm(0)
    return measured


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    for name, write in FILES.items():
        write(folder / name)
    here = Path(__file__).resolve()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(here.parents[place]) for place in (2, 1, 0))}
    done = subprocess.run(
        [sys.executable, str(here), str(folder)], env=environment, capture_output=True, text=True, check=True
    )
    return folder, json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_costs_little(measured, name):
    folder, results = measured
    answer = results[name]["answer"]
    assert answer.startswith(f"{folder / name}: "), answer
    assert "expected" in answer
    assert "\n" not in answer
    assert len(answer) < 500
    assert "weights_only" not in answer, "PyTorch advises to load it unsafely"
    assert results[name]["seconds"] < MAX_SECONDS
    assert results[name]["peak_mb"] < MAX_MB


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
