"""`models/train.py --track`: epochs pass through to MLflow.

Configuration and options become parameters, the series metrics by epoch. The address is $MLFLOW_TRACKING_URI, else
./mlruns, for which MLflow 3 needs MLFLOW_ALLOW_FILE_STORE.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from models.files import write_atomically
from models.train import Epoch, TrainingError

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "vitbn"
LOCAL_STORE = Path("mlruns")
# Else MLflow looks for an absent server for minutes.
SETTINGS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",  # seconds
}


class TrackingError(TrainingError):
    pass


@dataclass(frozen=True)
class _Run:
    client: MlflowClient
    id: str
    checkpoint: Path

    @property
    def record(self) -> Path:
        return self.checkpoint.with_suffix(".json")

    def send(self) -> None:
        """Sends what MLflow lacks."""
        from mlflow.entities import Metric, Param

        record = json.loads(self.record.read_bytes())
        known = self.client.get_run(self.id).data.params
        values = {**record["config"], **record["options"], "dataset": record["dataset"], "command": record["command"]}
        params = [Param(name, str(value)) for name, value in values.items() if name not in known]
        self.client.log_batch(self.id, params=params)
        sent = {metric.step for metric in self.client.get_metric_history(self.id, "training_loss")}
        for epoch in record["series"]:
            step, now_ms = epoch.pop("epoch"), int(1000 * time.time())
            by_class = dict(zip(class_metrics(record["config"]["labels"]), epoch.pop("class_accuracy"), strict=True))
            if step not in sent:
                values = {name: value for name, value in (epoch | by_class).items() if value is not None}
                metrics = [Metric(name, value, now_ms, step) for name, value in values.items()]
                self.client.log_batch(self.id, metrics=metrics)

    def close(self, status: str) -> None:
        if self.record.exists():
            self.send()
            self.client.log_artifact(self.id, str(self.record))
            self.client.log_artifact(self.id, str(self.checkpoint))
        self.client.set_terminated(self.id, status)


def class_metrics(labels: Sequence[str]) -> list[str]:
    """In characters that MLflow allows."""
    return [f"class_accuracy/{i} {re.sub('[^A-Za-z0-9_. -]', '_', label)[:100]}" for i, label in enumerate(labels)]


def track(epochs: Iterator[Epoch], checkpoint: Path, resume: bool, report: Callable[[str], None]) -> Iterator[Epoch]:
    """Sends each epoch, then yields it; raises TrackingError at once without MLflow.

    `resume` continues the earlier run. When MLflow stops answering, `report` gets a line; the rest is sent at the end.
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
    from mlflow import MlflowException

    experiment = client.get_experiment_by_name(EXPERIMENT)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT)
    path = checkpoint.with_suffix(".mlflow-run")
    if resume and path.exists():
        try:
            earlier = client.get_run(path.read_text().strip())
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
        else:
            if earlier.info.lifecycle_stage == "active":
                client.update_run(earlier.info.run_id, "RUNNING")
                return str(earlier.info.run_id)
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
    from mlflow import MlflowException

    try:
        action()
    except (MlflowException, OSError) as error:
        report(f"MLflow did not take everything, {run.record} has it: {_first_line(error)}")
        return False
    return True


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
