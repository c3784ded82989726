"""A training run recorded with MLflow, for `models/train.py --track`: epochs -> the same epochs, sent as they end.

What is sent is what the JSON beside the checkpoint says: its configuration and options as parameters, its series
as metrics with the epoch as step, and at the end itself and the checkpoint as artifacts. The address is
$MLFLOW_TRACKING_URI, else the folder ./mlruns, which MLflow 3 takes only with MLFLOW_ALLOW_FILE_STORE. MLflow's
own usage telemetry is switched off (MLFLOW_DISABLE_TELEMETRY): nothing goes elsewhere.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from models.files import write_atomically
from models.training import Epoch, TrainingError

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "vitbn"
LOCAL_STORE = Path("mlruns")
# Unless the environment says otherwise. MLflow would try for minutes to reach a server that is not there.
SETTINGS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # seconds
}


class TrackingError(TrainingError):
    """A run that cannot be tracked from its start; the message says what was expected and what was found."""


@dataclass(frozen=True)
class _Run:
    client: MlflowClient
    id: str
    checkpoint: Path

    @property
    def record(self) -> Path:
        """The JSON that the training writes."""
        return self.checkpoint.with_suffix(".json")

    def send(self) -> None:
        """Sends the parameters and the epochs of the record that MLflow does not have yet."""
        from mlflow.entities import Metric, Param

        record = json.loads(self.record.read_bytes())
        known = self.client.get_run(self.id).data.params
        values = {**record["config"], **record["options"], "dataset": record["dataset"], "command": record["command"]}
        params = [Param(name, str(value)) for name, value in values.items() if name not in known]
        self.client.log_batch(self.id, params=params)
        sent = {metric.step for metric in self.client.get_metric_history(self.id, "training_loss")}
        for epoch in record["series"]:
            step, now_ms = epoch.pop("epoch"), int(1000 * time.time())
            if step not in sent:
                metrics = [Metric(name, value, now_ms, step) for name, value in epoch.items()]
                self.client.log_batch(self.id, metrics=metrics)

    def close(self, status: str) -> None:
        """Sends the rest, the record and the checkpoint, and says how the run ended."""
        if self.record.exists():
            self.send()
            self.client.log_artifact(self.id, str(self.record))
            self.client.log_artifact(self.id, str(self.checkpoint))
        self.client.set_terminated(self.id, status)


def track(epochs: Iterator[Epoch], checkpoint: Path, resume: bool, report: Callable[[str], None]) -> Iterator[Epoch]:
    """The `epochs` of a training run that writes `checkpoint`, each passed on once MLflow has it.

    With `resume` the run of before goes on, with the parameters that it began with; where MLflow has none, a new
    run gets all epochs of the record. If MLflow no longer answers, a line goes to `report` and training goes on;
    what it missed is sent at the end, or else a second line says that it is not. Raises TrackingError, before
    anything is trained, where MLflow is missing or does not answer.
    """
    return _follow(epochs, _open(checkpoint, resume), report)


def _open(checkpoint: Path, resume: bool) -> _Run:
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read when MLflow is imported
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow import MlflowClient, MlflowException
    except ModuleNotFoundError as error:
        raise TrackingError(
            "--track: expected mlflow-skinny, found none; install it: pip install -c constraints.txt -e '.[track]'"
        ) from error
    address = os.environ.get("MLFLOW_TRACKING_URI")
    try:
        client = MlflowClient(tracking_uri=address or LOCAL_STORE.resolve().as_uri())
        return _Run(client, _run_id(client, checkpoint, resume), checkpoint)
    except (MlflowException, OSError) as error:
        where = "$MLFLOW_TRACKING_URI" if address else f"./{LOCAL_STORE}"
        raise TrackingError(f"--track: expected MLflow at {where}, found {_first_line(error)}") from error


def _run_id(client: MlflowClient, checkpoint: Path, resume: bool) -> str:
    """A new run's, or with `resume` that of the run that wrote `checkpoint`; it is kept in a file beside it."""
    from mlflow import MlflowException

    experiment = client.get_experiment_by_name(EXPERIMENT)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT)
    path = checkpoint.with_suffix(".mlflow-run")
    if resume and path.exists():
        try:
            found = client.get_run(path.read_text().strip())
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
        else:
            if found.info.lifecycle_stage == "active":
                client.update_run(found.info.run_id, "RUNNING")
                return str(found.info.run_id)
    created = client.create_run(experiment_id, run_name=checkpoint.stem)
    write_atomically(path, created.info.run_id.encode())
    return str(created.info.run_id)


def _follow(epochs: Iterator[Epoch], run: _Run, report: Callable[[str], None]) -> Iterator[Epoch]:
    answers, status = True, "FAILED"
    try:
        for epoch in epochs:
            answers = answers and _tried(run.send, run, report)
            yield epoch
        status = "FINISHED"
    except (KeyboardInterrupt, GeneratorExit):
        status = "KILLED"
        raise
    finally:
        _tried(lambda: run.close(status), run, report)


def _tried(action: Callable[[], None], run: _Run, report: Callable[[str], None]) -> bool:
    """Whether MLflow did what it was asked; says so where it did not."""
    from mlflow import MlflowException

    try:
        action()
    except (MlflowException, OSError) as error:
        report(f"MLflow did not take everything, {run.record} has it: {_first_line(error)}")
        return False
    return True


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
