import json
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path

import commands
import pytest
from commands import invoke, ok
from tune_runs import QUICK, SEARCH, failure, outcomes, run

import vitbn
from benchmarks.studies.search import Trial
from benchmarks.studies.tune import part_of, tune, write_results
from models.checkpoints.checkpoint import read_config
from models.data import load_digits
from models.train import train as train_command
from models.training import loop

pytestmark = pytest.mark.slow  # Ax takes seconds to import
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Six trials; the Gaussian process proposed the last."""
    folder = tmp_path_factory.mktemp("not interrupted")
    run(folder, "--trials", 6)
    return folder


def test_a_stopped_search_ends_like_one_that_was_not(uninterrupted, tmp_path):
    whole = json.loads((uninterrupted / "vitbn.trials.json").read_text())
    stopped = whole | {"trials": whole["trials"][:5]}  # each trial is in the file before the next begins
    (tmp_path / "vitbn.trials.json").write_text(json.dumps(stopped))
    run(tmp_path, "--trials", 6)
    assert outcomes(tmp_path) == outcomes(uninterrupted)


def test_a_finished_search_is_shown_again(uninterrupted):
    before = {path.name: path.read_bytes() for path in uninterrupted.iterdir()}
    names = ("trials.json", "best.json", "convergence.png", "plane.png")
    assert before.keys() == {f"vitbn.{name}" for name in names}
    printed = run(uninterrupted, "--trials", 6)
    assert {path.name: path.read_bytes() for path in uninterrupted.iterdir()} == before
    assert "vitbn on 120 images of digits, measured on 287 held out; epochs a trial: 1; cpu, seed 0" in printed
    assert f"Train with the best: vitbn train --params '{uninterrupted / 'vitbn.best.json'}'\n" in printed
    header, *rows = [line for line in printed.splitlines() if re.match(r"trial| +\d", line)]
    assert {len(row) for row in rows} == {len(header)}
    so_far = 0.0
    for row, (number, parameters, accuracy, _) in zip(rows, outcomes(uninterrupted), strict=True):
        so_far = max(so_far, accuracy)
        found = row.split()
        assert found[:3] == [str(number), f"{100 * accuracy:.2f}", f"{100 * so_far:.2f}"]
        assert found[4:] == [f"{parameters['lr']:.2e}", str(parameters["batch_size"])]


def test_the_file_says_how_it_came_about(uninterrupted):
    written = json.loads((uninterrupted / "vitbn.trials.json").read_text())
    assert written["search"] == json.loads(json.dumps(asdict(SEARCH)))
    assert {"torch", "ax-platform", "botorch"} <= written["environment"]["packages"].keys()
    assert all(row["duration_s"] > 0 and 0 <= row["accuracy"] <= 1 for row in written["trials"])
    assert str(ROOT) not in (uninterrupted / "vitbn.trials.json").read_text()


def test_a_place_that_cannot_be_written_is_seen_before_the_first_trial(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "train", lambda *arguments: pytest.fail("a trial ran"))
    (tmp_path / "file").touch()
    for objective in ("accuracy", "frontier"):
        options = [*(QUICK[2:] if objective == "frontier" else QUICK), "--objective", objective]
        line, code = commands.failure(tune, *options, "--output", tmp_path / "file")
        assert (code, line) == (1, f"Error: {tmp_path / 'file'}: File exists")


def test_ctrl_c_keeps_the_trials(tmp_path, monkeypatch):
    """As a killed search does: each trial is in the file before the next begins."""
    calls, in_the_file = [], []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            in_the_file.extend(outcomes(tmp_path))
            raise KeyboardInterrupt
        yield from original(*arguments)

    original = loop.train
    monkeypatch.setattr(loop, "train", interrupted)
    result = invoke(tune, *QUICK, "--trials", 4, "--output", tmp_path)
    assert result.exit_code == 130
    assert "Interrupted: kept 2 of 4 trials" in result.stdout
    assert len(in_the_file) == 2
    assert outcomes(tmp_path) == in_the_file
    assert (tmp_path / "vitbn.best.json").exists()


def test_a_trial_that_diverges_is_marked_and_the_search_goes_on(tmp_path, monkeypatch):
    calls = []

    def diverging(config, dataset, options, *others):
        calls.append(options)
        yield from original(config, dataset, replace(options, lr=1e30) if len(calls) == 2 else options, *others)

    original = loop.train
    monkeypatch.setattr(loop, "train", diverging)
    printed = run(tmp_path, "--trials", 3)
    rows = [(accuracy is None, error) for _, _, accuracy, error in outcomes(tmp_path)]
    assert [failed for failed, _ in rows] == [False, True, False]
    assert "expected a finite" in rows[1][1] or "expected finite" in rows[1][1]
    assert re.search(r"^ +2 +failed ", printed, re.MULTILINE)


def test_nothing_is_recommended_where_every_trial_failed(tmp_path, monkeypatch):
    def fails(*arguments):
        raise loop.TrainingError("training loss: expected a finite number, found nan")

    monkeypatch.setattr(loop, "train", fails)
    message, exit_code = failure(tmp_path, "--trials", 2)
    assert (exit_code, "found 2 failures" in message) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["vitbn.trials.json"]


def test_train_takes_the_best_parameters(uninterrupted, tmp_path):
    params = uninterrupted / "vitbn.best.json"
    winner = max(outcomes(uninterrupted), key=lambda row: row[2])[1]
    assert json.loads(params.read_text()) == {"model": "vitbn", "dataset": "digits", **winner}
    output = tmp_path / "run.safetensors"
    arguments = ["--params", params, "--epochs", 1, "--device", "cpu", "--output", output]
    ok(train_command, *arguments)
    trained = json.loads(output.with_suffix(".json").read_text())
    assert {name: trained["options"][name] for name in ("lr", "batch_size", "schedule")} == {
        name: winner[name] for name in ("lr", "batch_size", "schedule")
    }
    assert (trained["config"]["model"], trained["config"]["depth"]) == ("vitbn", 1)


def test_the_parameters_of_the_cnn_have_no_depth(tmp_path):
    given = {"lr": 0.001, "batch_size": 50, "depth": 6, "schedule": "constant"}
    trials = [Trial(given, 0.9, 1.0), Trial(given | {"lr": 0.002}, 0.8, 1.0)]
    *_, path = write_results(replace(SEARCH, model="cnn"), trials, tmp_path)
    expected = {"model": "cnn", "dataset": "digits", "lr": 0.001, "batch_size": 50, "schedule": "constant"}
    assert json.loads(path.read_text()) == expected


def test_no_test_image_is_looked_at():
    digits = load_digits()
    training_part = {image.tobytes() for image in digits.train_images}
    part = part_of(digits, 500)
    trained_on = {image.tobytes() for image in part.train_images}
    measured_on = {image.tobytes() for image in part.test_images}
    assert (len(part.train_labels), len(part.test_labels)) == (500, 287)
    assert trained_on <= training_part
    assert measured_on <= training_part
    assert not trained_on & measured_on


@pytest.mark.parametrize(("module", "package"), [("ax", "ax-platform"), ("matplotlib", "matplotlib")])
def test_a_missing_package_is_named(tmp_path, monkeypatch, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    message, exit_code = failure(tmp_path)
    assert (exit_code, f"expected {package}, found none; install it: pip install" in message) == (1, True)


def test_the_frontier_is_trained_measured_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.measure.interleaved_timing.MOST_ROUNDS", 1)
    small = {"patch": 7, "depth": 1, "dim": 32, "heads": 2, "last_heads": 4, "mlp_dim": 64}
    monkeypatch.setattr("benchmarks.studies.tune.propose", lambda search, trials: small)
    arguments = ["--objective", "frontier", "--trials", "1", "--epochs", "1", "--train-images", "120"]
    result = ok(vitbn.main, "tune", *arguments, "--device", "cpu", "--output", tmp_path)
    assert "On the frontier: trials 1" in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frontier.png", "frontier.trials.json", "trials"]
    (row,) = json.loads((tmp_path / "frontier.trials.json").read_text())["trials"]
    assert row["images_per_s"] > 0
    assert 0 < row["accuracy"] < 1
    config = read_config(tmp_path / "trials" / "001.safetensors")
    assert (config.depth, config.dim, config.heads, config.dim_head, config.mlp_dim) == (1, 32, 2, 32, 64)
    assert config.class_attention == (4, 32)
