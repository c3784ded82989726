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
import torch

import models.train as module
from models.checkpoint import load
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


def test_the_bar_goes_on_where_the_run_does(tmp_path, monkeypatch):
    bars = []
    silent = nullcontext(lambda images, loss: None)
    monkeypatch.setattr(module, "_progress", lambda *counts: bars.append(counts) or silent)
    arguments = ["--depth", 1, "--dim", 16, "--heads", 2, "--dim-head", 8, "--mlp-dim", 16, "--batch-size", 500]
    arguments += ["--device", "cpu", "--output", tmp_path / "run.safetensors"]
    for more in (["--epochs", 1], ["--epochs", 3, "--resume"]):
        ok(*arguments, *more)
    assert bars == [(1438, 0), (3 * 1438, 1438)]


def test_command_that_holds_out_more_images_than_there_are(tmp_path):
    line = "Error: digits: expected to hold out 1 to 1436 of 1438 images, found 5000"
    assert failure("--hold-out", 5000, "--output", tmp_path / "run.safetensors") == (line, 1)


def test_command_with_an_output_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_run", None)  # refused before the first epoch
    (tmp_path / "file").write_bytes(b"")
    message, exit_code = failure("--depth", "1", "--epochs", "1", "--output", tmp_path / "file" / "run.safetensors")
    assert (exit_code, str(tmp_path / "file") in message) == (1, True)


def test_command_with_an_output_that_is_no_place_for_a_checkpoint(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for output in (tmp_path / "run.json", tmp_path / "lr0.01", tmp_path, tmp_path / "pipe", ""):
        message, exit_code = failure("--output", output)
        assert exit_code == 2
        assert "'--output': expected a file for the checkpoint, such as run.safetensors, found " in message
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("dim", [10**11, 10**19, 10**30])
def test_command_with_a_network_larger_than_any_memory(tmp_path, dim):
    message, exit_code = failure("--dim", dim, "--device", "cpu", "--output", tmp_path / "run.safetensors")
    assert (exit_code, f"fits its memory, found depth 6, dim {dim}, heads 8" in message) == (1, True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_command_on_a_device_that_is_not_there(tmp_path, device):
    if torch.cuda.is_available() if device == "cuda" else torch.backends.mps.is_available():
        pytest.skip(f"this machine has {device}")
    message, exit_code = failure("--device", device, "--output", tmp_path / "run.safetensors")
    assert (exit_code, f"device {device}: expected it on this machine, found none" in message) == (1, True)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--lr", "0"),
        ("--lr", "nan"),
        ("--lr", "inf"),
        ("--weight-decay", "nan"),
        ("--label-smoothing", "nan"),
        ("--clip", "inf"),
        ("--ema", "nan"),
        ("--batch-size", "0"),
        ("--batch-size", "1"),
        ("--depth", "0"),
        ("--epochs", "0"),
        ("--seed", "-1"),
        ("--seed", str(2**63)),
        ("--model", "resnet"),
        ("--device", "abacus"),
    ],
)
def test_command_with_a_value_that_is_none(tmp_path, option, value):
    quick = ["--depth", "1", "--epochs", "1", "--output", tmp_path / "run.safetensors"]
    message, exit_code = failure(*quick, option, value)
    assert (exit_code, option in message) == (2, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_script_fails_without_a_traceback(tmp_path):
    arguments = ["--dataset", "mnist", "--data-dir", str(tmp_path)]
    child = subprocess.run([*SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert child.returncode == 1
    assert child.stderr.startswith("Error: ")
    assert child.stderr.count("\n") == 1


@pytest.mark.slow
def test_rows_appear_as_epochs_finish_and_ctrl_c_keeps_them(tmp_path):
    output = tmp_path / "run.safetensors"
    arguments = [*SCRIPT, "--depth", "1", "--epochs", "500", "--device", "cpu", "--output", str(output)]
    with subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as child:
        arrivals_s = []
        while len(arrivals_s) < 3 and (line := child.stdout.readline()):
            arrivals_s += [time.perf_counter()] if ROW.match(line) else []
        child.send_signal(signal.SIGINT)
        rest, errors = child.communicate(timeout=60)
    assert child.returncode == 130, errors
    assert arrivals_s[-1] - arrivals_s[0] > 0.1, "not all at once"
    assert "Traceback" not in errors
    kept = int(re.search(r"Interrupted: kept epoch (\d+)$", rest, re.MULTILINE)[1])
    assert load(output).metrics["epochs"] in (kept, kept + 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", "run.resume.pt", "run.safetensors"]
