import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from models import distributed, training
from models.checkpoint import load
from models.train import train as command

ROOT = Path(__file__).resolve().parents[2]


def invoke(*arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def torchrun(*script):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run([*command, *map(str, script)], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_gradients_are_averaged_and_nothing_outlives_the_group(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("""
from pathlib import Path
import torch
from models import distributed

with distributed.process_group("cpu"):
    linear = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(linear.parameters())  # imports much of torch, some of which may hold the group
    linear(torch.full((1, 3), 1.0 + distributed.rank())).sum().backward()
    distributed.average_gradients(linear)
    assert linear.weight.grad.eq(1.5).all() and linear.bias.grad.eq(1).all(), linear.weight.grad
    optimizer.step()
left = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
assert not any("gloo" in name for name in left), left  # such a thread may abort the interpreter as it ends
""")
    child = torchrun(script)
    assert child.returncode == 0, child.stderr


@pytest.mark.slow
def test_two_processes_train_one_network(tmp_path):
    outputs = [tmp_path / "one.safetensors", tmp_path / "two.safetensors"]
    # Plain form: half a batch has few CLS rows for BatchNorm.
    options = (
        "--depth",
        1,
        "--dim",
        32,
        "--heads",
        2,
        "--device",
        "cpu",
        "--epochs",
        2,
        "--clip",
        1,
        "--last-block",
        "all",
    )
    options += ("--output",)
    alone = invoke(*options, outputs[0])
    assert alone.exit_code == 0, alone.output
    child = torchrun(ROOT / "models/train.py", *options, outputs[1])
    assert child.returncode == 0, child.stderr
    assert alone.stdout.count("Wrote ") == child.stdout.count("Wrote ") == 1
    one, two = (json.loads(output.with_suffix(".json").read_text()) for output in outputs)
    assert two["epochs"] == 2
    for first, second in zip(one["series"], two["series"], strict=True):
        assert second["training_loss"] == pytest.approx(first["training_loss"], rel=0.05)
    tensors = [load(output).model.state_dict() for output in outputs]
    differs = [name for name in tensors[0] if (tensors[0][name] - tensors[1][name]).abs().max() > 0.1]
    assert not differs, "weights and statistics are those of both halves"


@pytest.mark.slow
def test_the_moving_average_has_the_statistics_of_every_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("""
import torch
from models import distributed, training
from models.data import load_digits

options = training.TrainingOptions(epochs=1, batch_size=20, lr=1e-3, seed=0, device="cpu", ema=0.9)
images = torch.from_numpy(load_digits().train_images[:40])
labels = torch.arange(40) % 10
with distributed.process_group("cpu"):
    config = load_digits().model_config("vitbn", 1)
    state = training._start(config, options, len(images))
    draw = lambda chosen: (images[chosen] / 255, labels[chosen])
    training._train_epoch(state, draw, len(images), options, lambda count, loss: None)
    first, second = distributed.gather([*state.average.buffers()])
    assert all(map(torch.equal, first, second))
""")
    child = torchrun(script)
    assert child.returncode == 0, child.stderr


def test_a_finished_run_is_refused_by_every_process(tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "rank", lambda: 1)
    monkeypatch.setattr(training, "train", lambda *arguments: iter(()))
    result = invoke("--epochs", 2, "--resume", "--output", tmp_path / "run.safetensors")
    assert isinstance(result.exception, SystemExit), result.exception
    assert (result.exit_code, "found them all" in result.stderr) == (1, True)


def test_a_batch_that_two_processes_cannot_share(tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "processes", lambda: 2)
    result = invoke("--depth", 1, "--batch-size", 25, "--output", tmp_path / "run.safetensors")
    assert result.exit_code == 1
    assert "batch size: expected a multiple of the 2 processes, found 25" in result.stderr
    assert list(tmp_path.iterdir()) == []
