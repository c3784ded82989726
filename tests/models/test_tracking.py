import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import trainings
from commands import failure, ok
from trainings import TINY, first_digits, silent
from tune_runs import SEARCH

from benchmarks.studies.study import study
from benchmarks.studies.tune import part_of, run_trial
from models.data import load_digits
from models.train import train as command
from models.training.loop import train
from models.training.tracking import SETTINGS, TrackingError, track
from vitbn_packages import install

OPTIONS = replace(trainings.OPTIONS, epochs=2)
QUICK = ("--depth", 1, "--epochs", 1, "--device", "cpu")
SERIES = {"training_time_s", "test_time_s", "training_loss", "test_accuracy"}
CLASSES = [f"class_accuracy/{number} {number}" for number in range(10)]


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_DISABLE_TELEMETRY", *SETTINGS):
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)
    return tmp_path / "mlruns"


@pytest.fixture(scope="module")
def some_digits():
    return first_digits(100)


def fail(line):
    pytest.fail(line)


def run(dataset, options=OPTIONS, resume=False, tracked=True, on_batch=silent, report=fail):
    path = Path("run.safetensors")
    epochs = train(TINY, dataset, options, path, resume, on_batch)
    list(track(epochs, path, resume, report) if tracked else epochs)
    return path


def client_of(store):
    from mlflow import MlflowClient  # two seconds, which only the worker of this file has to spend

    return MlflowClient(tracking_uri=store.as_uri())


def runs(store):
    """Newest first."""
    client = client_of(store)
    return client.search_runs([client.get_experiment_by_name("vitbn").experiment_id])


def sent_series(store, run_id):
    client = client_of(store)
    rows = {}
    for name in SERIES:
        for metric in client.get_metric_history(run_id, name):
            row = rows.setdefault(metric.step, {"epoch": metric.step})
            assert name not in row
            row[name] = metric.value
    for number, name in enumerate(CLASSES):
        for metric in client.get_metric_history(run_id, name):
            rows[metric.step].setdefault("class_accuracy", []).append(metric.value)
            assert len(rows[metric.step]["class_accuracy"]) == number + 1
    return [rows[step] for step in sorted(rows)]


def written_series(path):
    return json.loads(path.with_suffix(".json").read_text())["series"]


def test_mlflow_has_what_the_json_has(store, some_digits):
    path = run(some_digits)
    (found,) = runs(store)
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert len(written_series(path)) == 2
    assert sent_series(store, found.info.run_id) == written_series(path)
    record = json.loads(path.with_suffix(".json").read_text())
    values = record["config"] | record["options"] | {name: record[name] for name in ("dataset", "command")}
    assert len(values) == len(record["config"]) + len(record["options"]) + 2, "no two have the same name"
    assert found.data.params == {name: str(value) for name, value in values.items()}
    for name in ("run.json", "run.safetensors"):
        copy = store / found.info.experiment_id / found.info.run_id / "artifacts" / name
        assert copy.read_bytes() == path.with_name(name).read_bytes()
    assert found.info.user_id in (None, "unknown"), "nobody is named"
    assert found.data.tags == {"mlflow.runName": "run"}


def test_a_resumed_run_goes_on_and_a_new_run_is_another(store, some_digits):
    run(some_digits, replace(OPTIONS, epochs=1))
    path = run(some_digits, replace(OPTIONS, epochs=3), resume=True)
    (found,) = runs(store)
    assert found.info.status == "FINISHED"
    assert found.data.params["epochs"] == "1", "the parameters are those that it began with"
    assert [row["epoch"] for row in written_series(path)] == [1, 2, 3]
    assert sent_series(store, found.info.run_id) == written_series(path)
    run(some_digits, replace(OPTIONS, epochs=1))
    assert len(runs(store)) == 2, "a new run is another"


@pytest.mark.parametrize("left", ["none", "", "0" * 32, "../../somewhere", "deleted"])
def test_a_resumed_run_that_mlflow_does_not_know_is_a_new_one(store, some_digits, left):
    run(some_digits, replace(OPTIONS, epochs=1), tracked=left == "deleted")
    if left == "deleted":
        (deleted,) = runs(store)
        client_of(store).delete_run(deleted.info.run_id)
    elif left != "none":
        Path("run.mlflow-run").write_text(left)
    path = run(some_digits, resume=True)
    (found,) = runs(store)
    assert sent_series(store, found.info.run_id) == written_series(path)[1:]


def test_an_interrupted_run_keeps_its_epochs_and_a_run_that_fails_says_so(store, some_digits, interrupt):
    with pytest.raises(KeyboardInterrupt):
        run(some_digits, on_batch=interrupt)
    (found,) = runs(store)
    assert found.info.status == "KILLED"
    assert [row["epoch"] for row in sent_series(store, found.info.run_id)] == [1]
    assert (store / found.info.experiment_id / found.info.run_id / "artifacts/run.safetensors").exists()
    with pytest.raises(Exception, match="finite"):
        run(some_digits, replace(OPTIONS, lr=1e30))
    assert sorted(found.info.status for found in runs(store)) == ["FAILED", "KILLED"]


def test_a_run_left_between_two_writes_keeps_its_last_epoch(store, some_digits):
    path = Path("run.safetensors")
    epochs = track(train(TINY, some_digits, replace(OPTIONS, epochs=5), path, False, silent), path, False, fail)
    for _ in range(3):
        next(epochs)
    epochs.close()
    (found,) = runs(store)
    kept = store / found.info.experiment_id / found.info.run_id / "artifacts/run.json"
    assert found.info.status == "KILLED"
    assert sent_series(store, found.info.run_id) == json.loads(kept.read_text())["series"] == written_series(path)
    assert len(written_series(path)) == 3


@pytest.mark.parametrize("own", [True, False], ids=["MLflow's error", "ConnectionError"])
def test_a_server_that_goes_away_costs_a_line(store, some_digits, monkeypatch, own):
    import mlflow

    error = (mlflow.MlflowException if own else ConnectionError)("the server is gone\nfor good")
    calls, lines = [], []

    def log_batch(*arguments, **named):
        calls.append(arguments)
        raise error

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", log_batch)
    path = run(some_digits, report=lines.append)
    assert [row["epoch"] for row in written_series(path)] == [1, 2]
    assert path.exists()
    assert (len(calls), len(lines)) == (1, 1), "no epoch waits for it again"
    assert "run.json has it: " in lines[0]
    assert "gone" in lines[0]
    assert "\n" not in lines[0]
    (found,) = runs(store)
    assert found.info.status == "FINISHED"


def refusal(*arguments):
    line, code = failure(command, "--track", *QUICK, "--output", "new/run.safetensors", *arguments)
    assert (code, line.startswith("Error: --track: expected "), Path("new").exists()) == (1, True, False)
    return line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("listens", "said"), [(False, "expected MLflow at $MLFLOW_TRACKING_URI, found "), (True, "timed out")]
)
def test_command_with_a_server_that_is_away_or_never_answers(monkeypatch, listens, said):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.getsockname()[1]}")
        start = time.perf_counter()
        assert said.lower() in refusal().lower()
        assert time.perf_counter() - start < 30


def test_a_silent_server_is_waited_for_seconds_not_minutes():
    attempts = 1 + int(SETTINGS["MLFLOW_HTTP_REQUEST_MAX_RETRIES"])
    assert attempts * int(SETTINGS["MLFLOW_HTTP_REQUEST_TIMEOUT"]) <= 20


@pytest.mark.parametrize("address", ["sqlite:///runs.db", "ftp://127.0.0.1", "file:///proc/none"])
def test_command_with_an_address_that_is_none(monkeypatch, address):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    refusal()


def test_command_without_mlflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert f"expected mlflow-skinny, found none; install it: {install('track')}" in refusal()


def studied(mnist, *arguments):
    common = ["--data-dir", mnist, "--output", "out", "--device", "cpu", "--train-images", 20, "--track"]
    ok(study, "dnn", *common, *arguments)
    return json.loads(Path("out/dnn.json").read_text())


@pytest.mark.slow
def test_all_runs_of_a_study_are_tracked_and_go_on(store, small_mnist):
    for epochs in (1, 2):
        written = studied(small_mnist, "--epochs", epochs)
        found = runs(store)
        assert {run.info.run_name for run in found} == {one["label"] for one in written["runs"]}
        assert [run.info.status for run in found] == ["FINISHED"] * 4
        for run in found:
            own = written_series(Path("out/runs", f"{run.info.run_name}.json"))
            assert len(own) == epochs
            assert sent_series(store, run.info.run_id) == own


def trial():
    parameters = {"lr": 0.003, "batch_size": 40, "depth": 1, "schedule": "constant"}
    data, path = part_of(load_digits(), SEARCH.train_images), Path("vitbn-trial.safetensors")
    return run_trial(SEARCH, data, "cpu", parameters, path, track=True)


def test_a_trial_of_a_search_is_tracked(store):
    tried = trial()
    (found,) = runs(store)
    assert (found.info.status, found.info.run_name) == ("FINISHED", "vitbn-trial")
    assert (found.data.metrics["test_accuracy"], found.data.params["lr"]) == (tried.accuracy, "0.003")


def test_a_search_without_mlflow_is_no_failed_trial(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(TrackingError, match="expected mlflow-skinny, found none"):
        trial()


def test_the_command_tracks_only_where_it_is_asked_to(store, monkeypatch):
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "mlflow", None)
        ok(command, *QUICK, "--output", "run.safetensors")
        assert sorted(path.name for path in Path().iterdir()) == ["run.json", "run.resume.pt", "run.safetensors"]
    ok(command, *QUICK, "--output", "tracked.safetensors", "--track")
    (found,) = runs(store)
    assert sent_series(store, found.info.run_id) == written_series(Path("tracked.safetensors"))


@pytest.mark.slow
def test_mlflow_sends_no_telemetry():
    """MLflow switches it off under pytest and in CI, so both are hidden."""
    said = "print(mlflow.telemetry.get_telemetry_client() is None)"
    imports = "from pathlib import Path; from models.training.tracking import track"
    ours = imports + "; track(iter(()), Path('run'), False, print)"
    hidden = ("PYTEST_CURRENT_TEST", "CI", "GITHUB_ACTIONS", "PYTEST_VERSION")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    child = subprocess.run(
        [sys.executable, "-c", f"{ours}; import mlflow.telemetry; {said}"],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    assert child.stdout == "True\n"
