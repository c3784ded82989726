import subprocess
import sys
from pathlib import Path

import pytest
from studying import carried_out, failure, run, shipped

import models.study as module
from models import catalog
from models.config import ModelConfig
from models.data import MNIST_PARTS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints") / "shipped"
    return shipped(folder, ModelConfig(depth=1), ModelConfig(model="cnn"))


def copy_of(mnist, folder, part, change):
    folder.mkdir()
    for path in mnist.iterdir():
        content = path.read_bytes()
        (folder / path.name).write_bytes(change(content) if path.name in MNIST_PARTS[part] else content)
    return folder


@pytest.mark.parametrize("name", ["learning-rates", "depths", "dnn", "frontier", "optimised", "shift"])
def test_folder_without_mnist(tmp_path, checkpoints, name):
    arguments = ["--checkpoints", checkpoints] if name in ("frontier", "shift") else []
    arguments += ["--params", tmp_path / "searches"] if name == "optimised" else []
    message, exit_code = failure(name, "--data-dir", tmp_path / "none", "--output", tmp_path / "out", *arguments)
    assert (exit_code, f"{tmp_path / 'none'}: expected train-images" in message) == (1, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content[:-1], "bytes for (40, 28, 28), found"),
        (lambda content: b"\x00\x00\x0d" + content[3:], "expected the idx magic"),
    ],
    ids=["truncated", "magic"],
)
def test_damaged_mnist(small_mnist, tmp_path, change, said):
    folder = copy_of(small_mnist, tmp_path / "damaged", "test images", change)
    message, exit_code = failure("dnn", "--data-dir", folder, "--output", tmp_path / "out")
    assert (exit_code, said in message, "t10k-images" in message) == (1, True, True)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_folder_of_another_study(small_mnist, tmp_path):
    carried_out("dnn", small_mnist, tmp_path / "out", "--epochs", 1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    common = ["--data-dir", small_mnist, "--output", tmp_path / "out"]
    message, exit_code = failure("learning-rates", *common, "--epochs", 1)
    assert (exit_code, "expected study learning-rates, found dnn; name another --output" in message) == (1, True)
    message, _ = failure("dnn", *common, "--epochs", 1, "--train-images", 60)
    assert "expected train images 60, found 120" in message
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--epochs", 0], 2, "--epochs"),
        (["--train-images", 1], 2, "--train-images"),
        (["--train-images", 121], 1, "mnist: expected at most 120 images, found 121"),
        (["--device", "abacus"], 2, "--device"),
        (["--rate", "0.02"], 2, "--rate"),
    ],
)
def test_values_that_are_none(small_mnist, tmp_path, arguments, code, said):
    message, exit_code = failure("dnn", "--data-dir", small_mnist, "--output", tmp_path / "out", *arguments)
    assert (exit_code, said in message) == (code, True)
    assert list(tmp_path.iterdir()) == []


def test_list_says_how_long_each_takes():
    ended = run("--list")
    assert ended.exit_code == 0
    lines = {line.split()[0]: line.split() for line in ended.output.splitlines()[1:-1]}
    assert set(lines) == {*module.STUDIES, "shift", "adaptation", "layout"}
    assert lines["learning-rates"][1:4] == ["18", "30", "4.8"]
    assert all(float(line[3]) > 0 for line in lines.values())


def test_output_that_is_a_file(small_mnist, tmp_path):
    (tmp_path / "file").write_text("")
    message, exit_code = failure("dnn", "--data-dir", small_mnist, "--output", tmp_path / "file")
    assert (exit_code, str(tmp_path / "file") in message) == (1, True)


def test_shipped_folder_is_the_default():
    assert module.PRETRAINED == catalog.PRETRAINED


def test_help_needs_no_torch():
    program = "import sys, models.study; sys.exit(bool({'torch', 'matplotlib', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
