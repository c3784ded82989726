import json
import statistics

import numpy as np
import pytest
from studying import carried_out, failure, rows_of, shipped

from models.config import ModelConfig
from models.data import load_idx_part
from models.studies import digits as on_digits


def test_shift_without_emnist_says_so(small_mnist, checkpoints, tmp_path, monkeypatch):
    monkeypatch.delenv("EMNIST_DIR", raising=False)
    monkeypatch.setattr(on_digits, "QUICK_IMAGES", 50)
    written = carried_out("shift", small_mnist, tmp_path / "out", "--checkpoints", checkpoints, "--quick")
    assert written["scope"]["images"] == {"mnist": 40, "digits": 50}
    page = (tmp_path / "out/shift.md").read_text()
    assert "EMNIST digits: not measured: no EMNIST files in --emnist-dir or EMNIST_DIR." in page
    assert all(len(row["sets"]["mnist"]["times_s"]) == 3 for row in written["rows"])
    shown = {row["model"]: row for row in rows_of(tmp_path / "out", "shift")}
    times = {row["model"]: statistics.median(row["sets"]["mnist"]["times_s"]) for row in written["rows"]}
    assert shown["cnn"]["ms per 1,000 images of MNIST"] == f"{1e6 * times['cnn'] / 40:,.1f}"
    assert shown["vitbn"]["times the CNN's"] == f"{times['vitbn'] / times['cnn']:,.2f}"


def test_shift_sets_networks_with_a_teacher_apart(small_mnist, tmp_path, monkeypatch):
    monkeypatch.setattr(on_digits, "QUICK_IMAGES", 20)
    folder = shipped(tmp_path / "shipped", ModelConfig(depth=1))
    taught = shipped(tmp_path / "taught", ModelConfig(model="cnn"), options={"teacher": "a network"})
    (taught / "cnn-6.safetensors").rename(folder / "cnn.safetensors")
    carried_out("shift", small_mnist, tmp_path / "out", "--checkpoints", folder, "--quick")
    apart = (tmp_path / "out/shift.md").read_text().split("Networks that learned from a teacher")
    assert ["| vitbn |" in part for part in apart] == [True, False]
    assert ["| cnn |" in part for part in apart] == [False, True]


@pytest.mark.slow
def test_shift_on_emnist_reads_it_upright(small_mnist, small_emnist, checkpoints, tmp_path, monkeypatch):
    monkeypatch.setattr(on_digits, "QUICK_IMAGES", 50)
    arguments = ["--checkpoints", checkpoints, "--quick", "--emnist-dir", small_emnist]
    written = carried_out("shift", small_mnist, tmp_path / "out", *arguments)
    assert str(small_emnist) not in json.dumps(written)
    stored, _ = load_idx_part("emnist-digits", small_emnist, "test")
    assert np.mean(stored != stored.swapaxes(2, 3)) > 0.1, "a missing turn would show"
    for row in written["rows"]:  # the same images, once turned
        assert row["sets"]["emnist-digits"]["accuracy"] == row["sets"]["mnist"]["accuracy"]
    page = (tmp_path / "out/shift.md").read_text()
    assert "ms per 1,000 images of EMNIST digits" in page


def test_all_of_the_digits_are_asked_about():
    mnist = (np.zeros((2, 1, 28, 28), np.uint8), np.zeros(2, np.int64))
    sets = on_digits.image_sets(mnist, None, quick=False)
    assert {name: len(labels) for name, (_, labels) in sets.items()} == {"mnist": 2, "digits": 1797}


def test_shift_with_a_folder_that_is_not_there(small_mnist, checkpoints, tmp_path):
    common = ["--data-dir", small_mnist, "--output", tmp_path / "out"]
    message, _ = failure("shift", *common, "--checkpoints", checkpoints, "--emnist-dir", tmp_path / "none")
    assert f"{tmp_path / 'none'}: expected a folder with the idx files of EMNIST's digits, found none" in message
    message, _ = failure("shift", *common, "--checkpoints", tmp_path / "none")
    assert f"{tmp_path / 'none'}: expected checkpoints, found none" in message


def test_shift_of_a_checkpoint_of_other_images(small_mnist, tmp_path):
    folder = shipped(tmp_path / "shipped", ModelConfig(depth=1), dataset="digits")
    common = ["--data-dir", small_mnist, "--output", tmp_path / "out", "--checkpoints", folder]
    assert "expected a checkpoint trained on mnist, found digits" in failure("shift", *common)[0]
