import pytest
from studying import failure, run

import benchmarks.studies.study as module


@pytest.mark.parametrize("name", ["dnn", "optimised"])
def test_folder_without_mnist(tmp_path, name):
    arguments = ["--params", tmp_path / "searches"] if name == "optimised" else []
    message, exit_code = failure(name, "--data-dir", tmp_path / "none", "--output", tmp_path / "out", *arguments)
    assert (exit_code, f"{tmp_path / 'none'}: expected train-images" in message) == (1, True)
    assert list(tmp_path.iterdir()) == []


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
    lines = {line.split()[0]: line.split() for line in ended.output.splitlines()[1:-2]}
    assert set(lines) == {*module.STUDIES, "layout"}
    assert lines["learning-rates"][1:4] == ["18", "30", "4.8"]
    assert all(float(line[3]) > 0 for line in lines.values())


def test_output_that_is_a_file(small_mnist, tmp_path):
    (tmp_path / "file").write_text("")
    message, exit_code = failure("dnn", "--data-dir", small_mnist, "--output", tmp_path / "file")
    assert (exit_code, str(tmp_path / "file") in message) == (1, True)
