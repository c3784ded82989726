"""Files after each epoch: the checkpoint, its series (.json) and its state (.resume.pt)."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from models import checkpoint
from models.config import ModelConfig
from models.data import Dataset
from models.evaluation import measure_accuracy, measure_calibration, on_device
from models.files import write_atomically
from models.metrics import Metrics
from models.state_dict_file import unpickling_reason
from models.training_options import Epoch, TrainingError, TrainingOptions, command_line, depends_on_epochs


@dataclass
class State:
    model: nn.Module
    average: nn.Module | None
    teacher: nn.Module | None
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    order: torch.Generator  # of the images
    random: Tensor  # PyTorch's own generator, for dropout and distortions
    series: list[Epoch]

    @property
    def kept(self) -> nn.Module:
        return self.average or self.model


def write(
    state: State, output: Path, resume_path: Path, config: ModelConfig, dataset: Dataset, options: TrainingOptions
) -> None:
    metrics = _metrics(state, config, dataset, options)
    epochs = [asdict(epoch) for epoch in state.series]
    resumable = {
        "run": _run_key(config, dataset, options),
        "images": len(dataset.train_labels),
        "model": state.model.state_dict(),
        "average": None if state.average is None else state.average.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "schedule": state.schedule.state_dict(),
        "order": state.order.get_state(),
        "random": state.random,
        "series": epochs,
    }
    buffer = io.BytesIO()
    torch.save(resumable, buffer)
    checkpoint.save(output, state.kept, config, metrics)
    series = metrics | {"config": asdict(config), "series": epochs}
    write_atomically(output.with_suffix(".json"), json.dumps(series, indent=2).encode())
    write_atomically(resume_path, buffer.getvalue())


def _metrics(state: State, config: ModelConfig, dataset: Dataset, options: TrainingOptions) -> Metrics:
    """With held-out images, only the last epoch uses the test images."""
    last = state.series[-1]
    metrics: Metrics = {
        "dataset": dataset.name,
        "epochs": last.epoch,
        "command": command_line(config, dataset, options),
        "options": asdict(options),
        "test_images": len(dataset.test_labels),
    }
    if not options.hold_out:
        return metrics | {"test_accuracy": last.test_accuracy}
    metrics["held_out_accuracy"] = last.test_accuracy
    if last.epoch == options.epochs:
        test = on_device(dataset.test_images, dataset.test_labels, options.device)
        metrics["test_accuracy"] = measure_accuracy(state.kept, *test)
        metrics |= measure_calibration(state.kept, dataset, options.hold_out)
    return metrics


def restore(state: State, path: Path, config: ModelConfig, dataset: Dataset, options: TrainingOptions) -> None:
    if not path.is_file():
        raise TrainingError(f"{path}: expected the state of an earlier run to resume, found no such file")
    try:
        saved = torch.load(path, map_location=options.device, weights_only=True)
        found = saved["run"]
    except Exception as error:  # damaged bytes, and other objects, raise any exception
        reason = unpickling_reason(error)
        raise TrainingError(f"{path}: expected the state of an earlier run, found {reason}") from error
    if found != (expected := _run_key(config, dataset, options)):
        differ = _lacking(expected, str(found)), _lacking(str(found), expected)
        raise TrainingError(f"{path}: expected a run of {differ[0]}, found {differ[1]}")
    count = len(dataset.train_labels)
    if saved.get("images", count) != count:
        raise TrainingError(f"{path}: expected a run of {count} training images, found {saved['images']}")
    state.model.load_state_dict(saved["model"])
    if state.average is not None:
        state.average.load_state_dict(saved["average"])
    state.optimizer.load_state_dict(saved["optimizer"])
    state.schedule.load_state_dict(saved["schedule"])
    state.order.set_state(saved["order"].cpu())
    state.random = saved["random"].cpu()
    state.series.extend(Epoch(**epoch) for epoch in saved["series"])


def _lacking(key: str, other: str) -> str:
    """The parts of a run's key that another lacks."""
    parts = other.split(", ")
    return ", ".join(part for part in key.split(", ") if part not in parts) or "none of it"


def _run_key(config: ModelConfig, dataset: Dataset, options: TrainingOptions) -> str:
    """What must agree to resume."""
    same = asdict(options)
    del same["device"]
    if not depends_on_epochs(config, options):
        del same["epochs"]
    read = f"{dataset.name} {dataset.reading}".rstrip()
    return f"{config.to_json()} on {read}, {json.dumps(same)}"
