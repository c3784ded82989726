"""Records a training's epochs with MLflow: `models/train.py --track`.

Configuration and options become parameters, the series metrics by epoch. The address is $MLFLOW_TRACKING_URI, else
./mlruns, for which MLflow 3 needs MLFLOW_ALLOW_FILE_STORE.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from common.files import write_atomically
from models.training.recipe import Epoch, TrainingError

if TYPE_CHECKING:
    from mlflow import MlflowClient

Epochs = Generator[Epoch, None, None]
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


def class_metrics(labels: Sequence[str]) -> list[str]:
    """Names of the classes' accuracies, in characters that MLflow allows."""
    return [f"class_accuracy/{i} {re.sub('[^A-Za-z0-9_. -]', '_', label)[:100]}" for i, label in enumerate(labels)]


def track(epochs: Epochs, checkpoint: Path, resume: bool, report: Callable[[str], None]) -> Epochs:
    """Sends each epoch, then yields it. Raises TrackingError at once if MLflow is missing or does not answer.

    `resume` continues the earlier run. When MLflow stops answering, `report` gets a line and no more epochs are sent.
    """
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"  # read when MLflow is imported
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow import MlflowClient, MlflowException
    except ModuleNotFoundError as error:
        from vitbn_packages import install

        raise TrackingError(f"--track: expected mlflow-skinny, found none; install it: {install('track')}") from error
    address = os.environ.get("MLFLOW_TRACKING_URI")
    try:
        client = MlflowClient(tracking_uri=address or LOCAL_STORE.resolve().as_uri())
        return _follow(epochs, client, _run_id(client, checkpoint, resume), checkpoint, report)
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


def _follow(
    epochs: Epochs, client: MlflowClient, run_id: str, checkpoint: Path, report: Callable[[str], None]
) -> Epochs:
    from mlflow import MlflowException

    record = checkpoint.with_suffix(".json")

    def tried(action: Callable[[], None]) -> bool:
        try:
            action()
        except (MlflowException, OSError) as error:
            report(f"MLflow did not take everything, {record} has it: {_first_line(error)}")
            return False
        return True

    def close() -> None:
        if record.exists():
            client.log_artifact(run_id, str(record))
            client.log_artifact(run_id, str(checkpoint))
        client.set_terminated(run_id, status)

    answers, status = True, "FAILED"
    try:
        with closing(epochs):  # writes the last epoch
            for epoch in epochs:
                answers = answers and tried(partial(_send, client, run_id, record, epoch))
                yield epoch
        status = "FINISHED"
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        status = "KILLED"
        raise
    finally:
        tried(close)


def _send(client: MlflowClient, run_id: str, path: Path, epoch: Epoch) -> None:
    """Sends the epoch, and the parameters that MLflow lacks: MLflow refuses to change a parameter."""
    from mlflow.entities import Metric, Param

    record = json.loads(path.read_bytes())
    known = client.get_run(run_id).data.params
    values = {**record["config"], **record["options"], "dataset": record["dataset"], "command": record["command"]}
    params = [Param(name, str(value)) for name, value in values.items() if name not in known]
    row, now_ms = asdict(epoch), int(1000 * time.time())
    by_class = dict(zip(class_metrics(record["config"]["labels"]), row.pop("class_accuracy"), strict=True))
    step, figures = row.pop("epoch"), {name: value for name, value in (row | by_class).items() if value is not None}
    metrics = [Metric(name, value, now_ms, step) for name, value in figures.items()]
    client.log_batch(run_id, metrics, params)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
