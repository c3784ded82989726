import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import commands
import pytest
from trainings import assert_identical

import models.train as module
from models.checkpoints.checkpoint import load
from models.train import train as command

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = [sys.executable, str(ROOT / "models/train.py")]
ok, failure = partial(commands.ok, command), partial(commands.failure, command)
ROW = re.compile(r"^ +(\d+) +[\d.]+ +[\d.]+ +[\d.]+ +([\d.]+)$", re.MULTILINE)


@pytest.mark.slow
def test_command_writes_prints_and_resumes(tmp_path):
    output = tmp_path / "new folder" / "vitbn.safetensors"
    arguments = ["--depth", "1", "--batch-size", "200", "--device", "cpu", "--output", str(output)]
    ok(*arguments, "--epochs", 1)
    result = ok(*arguments, "--epochs", 2, "--resume")
    assert "epoch  training s  test s  training loss  test accuracy %" in result.output
    accuracy = load(output).metrics["test_accuracy"]
    assert ROW.findall(result.output) == [("2", f"{100 * accuracy:.2f}")]
    assert f"Wrote {output} and {output.with_suffix('.json')}" in result.output
    assert shlex.split(result.output)[-1] == str(output)
    message, exit_code = failure(*arguments, "--epochs", "2", "--resume")
    assert (exit_code, "expected fewer than 2 finished epochs, found them all" in message) == (1, True)


def test_a_thousand_epochs_are_few_rows(capsys):
    epochs = (module.Epoch(number, 1.0, 1.0, 0.5, 0.9) for number in range(1, 1001))
    last = module._print_epochs(epochs, "test accuracy %", 1000)
    rows = ROW.findall(capsys.readouterr().out)
    assert (last.epoch, len(rows), rows[0][0], rows[1][0], rows[-1][0]) == (1000, 21, "1", "50", "1000")


def test_the_bar_goes_on_where_the_run_does(tmp_path, monkeypatch):
    bars = []
    silent = nullcontext(lambda images, loss: None)
    monkeypatch.setattr(module, "_progress", lambda *counts: bars.append(counts) or silent)
    arguments = ["--depth", 1, "--dim", 16, "--heads", 2, "--dim-head", 8, "--mlp-dim", 16, "--batch-size", 500]
    arguments += ["--device", "cpu", "--output", tmp_path / "run.safetensors"]
    for more in (["--epochs", 1], ["--epochs", 3, "--resume"]):
        ok(*arguments, *more)
    assert bars == [(1438, 0), (3 * 1438, 1438)]


@pytest.mark.slow
def test_script_fails_without_a_traceback(tmp_path):
    arguments = ["--dataset", "mnist", "--data-dir", str(tmp_path)]
    child = subprocess.run([*SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert child.returncode == 1
    assert child.stderr.startswith("Error: ")
    assert child.stderr.count("\n") == 1


SMALL = ["--depth", "1", "--dim", "16", "--heads", "2", "--dim-head", "8", "--mlp-dim", "16", "--device", "cpu"]


def stopped(arguments, number):
    """Sends a signal after three rows: the exit code, when the rows came, the text after them, the errors."""
    with subprocess.Popen(
        [*SCRIPT, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as child:
        arrivals_s = []
        while len(arrivals_s) < 3 and (line := child.stdout.readline()):
            arrivals_s += [time.perf_counter()] if ROW.match(line) else []
        child.send_signal(number)
        rest, errors = child.communicate(timeout=60)
    return child.returncode, arrivals_s, rest, errors


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_rows_appear_as_epochs_finish_and_ctrl_c_keeps_them(tmp_path, number, code):
    output = tmp_path / "run.safetensors"
    found, arrivals_s, rest, errors = stopped([*SMALL, "--epochs", 100, "--output", output], number)
    assert found == code, errors
    assert arrivals_s[-1] - arrivals_s[0] > 0.1, "not all at once"
    assert "Traceback" not in errors
    kept = int(re.search(r"Interrupted: kept epoch (\d+); --resume goes on$", rest, re.MULTILINE)[1])
    assert load(output).metrics["epochs"] in (kept, kept + 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "run.resume.pt", "run.safetensors"]


@pytest.mark.slow
def test_a_killed_training_goes_on_from_its_last_write(tmp_path):
    whole, killed = tmp_path / "whole.safetensors", tmp_path / "killed.safetensors"
    arguments = [*SMALL, "--batch-size", 500, "--epochs", 12]
    assert stopped([*arguments, "--output", killed], signal.SIGKILL)[0] == -signal.SIGKILL
    assert 1 <= load(killed).metrics["epochs"] < 12
    ok(*arguments, "--output", killed, "--resume")
    ok(*arguments, "--output", whole)
    assert_identical(killed, whole)
