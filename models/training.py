"""The training loop: dataset -> checkpoint, with the four series of the study.

In: `TrainingOptions` and a `Dataset`. Out: after every epoch the checkpoint (safetensors), beside it the series (JSON)
and what a later run needs to go on (`.resume.pt`). Times exclude data loading: the images are on the device beforehand.
"""

from __future__ import annotations

import io
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import checkpoint
from models.config import INPUT_SCALE, ModelConfig
from models.data import Dataset
from models.files import write_atomically
from models.registry import build

TEST_BATCH = 1000


class TrainingError(Exception):
    """Training that cannot start or go on; the message says what was expected and what was found."""


@dataclass(frozen=True)
class TrainingOptions:
    """How a model is trained: Adam (Kingma and Ba, 2015) on the cross-entropy, at a constant learning rate."""

    epochs: int
    batch_size: int
    lr: float
    seed: int
    device: str


@dataclass(frozen=True)
class Epoch:
    """The four series of the study at one epoch: times in seconds, mean training loss, test accuracy in [0, 1]."""

    epoch: int
    training_time_s: float
    test_time_s: float
    training_loss: float
    test_accuracy: float


@dataclass
class _State:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    generator: torch.Generator  # draws the order of the images; the seed decides it alone
    series: list[Epoch]


def choose_device(name: str) -> str:
    """`auto` -> cuda, mps or cpu, the first that is there; TrainingError for a cuda that is not."""
    if name == "cuda" and not torch.cuda.is_available():
        raise TrainingError("device cuda: expected a CUDA device, found none")
    if name != "auto":
        return name
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def train(
    config: ModelConfig,
    dataset: Dataset,
    options: TrainingOptions,
    output: Path,
    resume: bool,
    on_batch: Callable[[int, float], None],
) -> Iterator[Epoch]:
    """Trains, yielding each epoch after its checkpoint is on disk, so that an interrupted run loses one at most.

    `on_batch` is called with the images done and the loss. With `resume` the run at `output` goes on, epoch for epoch
    as if it had never stopped. Raises TrainingError when the loss is no longer finite, or there is nothing to resume.
    """
    torch.manual_seed(options.seed)
    model = build(config).to(options.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    state = _State(model, optimizer, torch.Generator().manual_seed(options.seed), [])
    resume_path = output.with_suffix(".resume.pt")
    if resume:
        _restore(state, resume_path, config, dataset, options)
    images, labels = _on_device(dataset.train_images, dataset.train_labels, options.device)
    test_images, test_labels = _on_device(dataset.test_images, dataset.test_labels, options.device)
    for number in range(len(state.series) + 1, options.epochs + 1):
        start = time.perf_counter()
        loss = _train_epoch(state, images, labels, options.batch_size, on_batch)
        training_time_s = time.perf_counter() - start
        start = time.perf_counter()
        accuracy = measure_accuracy(model, test_images, test_labels)
        epoch = Epoch(number, training_time_s, time.perf_counter() - start, loss, accuracy)
        state.series.append(epoch)
        _write(state, output, resume_path, config, dataset, options)
        yield epoch


def measure_accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of uint8 `images` (n, C, H, W) that `model`, in eval mode, gives the class in int64 `labels` (n,).

    Raises TrainingError for logits that are not finite.
    """
    model.eval()
    right = 0
    with torch.inference_mode():
        for x, y in zip(images.split(TEST_BATCH), labels.split(TEST_BATCH), strict=True):
            logits = model(x * INPUT_SCALE)  # (B, num_classes)
            if not logits.isfinite().all():
                raise TrainingError("test logits: expected finite numbers, found others; try a lower --lr")
            right += int((logits.argmax(1) == y).sum())
    return right / len(labels)


def _on_device(images: Any, labels: Any, device: str) -> tuple[Tensor, Tensor]:
    return torch.tensor(images, device=device), torch.tensor(labels, device=device)


def _train_epoch(
    state: _State, images: Tensor, labels: Tensor, batch_size: int, on_batch: Callable[[int, float], None]
) -> float:
    state.model.train()
    order = torch.randperm(len(images), generator=state.generator).to(images.device)
    total, trained_on = torch.zeros((), device=images.device), 0
    for batch in order.split(batch_size):
        if len(batch) == 1:
            break  # BatchNorm has no variance of one image; another order leaves another one out
        state.optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(state.model(images[batch] * INPUT_SCALE), labels[batch])
        if not math.isfinite(value := loss.item()):
            raise TrainingError(f"training loss: expected a finite number, found {value}; try a lower --lr")
        loss.backward()
        state.optimizer.step()
        total += loss.detach() * len(batch)
        trained_on += len(batch)
        on_batch(len(batch), value)
    return float(total) / trained_on


def _write(
    state: _State, output: Path, resume_path: Path, config: ModelConfig, dataset: Dataset, options: TrainingOptions
) -> None:
    last = state.series[-1]
    metrics = {
        "dataset": dataset.name,
        "test_accuracy": last.test_accuracy,
        "test_images": len(dataset.test_labels),
        "epochs": last.epoch,
        "options": asdict(options),
    }
    series = metrics | {"config": asdict(config), "series": [asdict(epoch) for epoch in state.series]}
    checkpoint.save(output, state.model, config, metrics)
    write_atomically(output.with_suffix(".json"), json.dumps(series, indent=2).encode())
    resumable = {
        "run": _run_key(config, dataset, options),
        "model": state.model.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "order": state.generator.get_state(),
        "dropout": torch.get_rng_state(),
        "series": [asdict(epoch) for epoch in state.series],
    }
    buffer = io.BytesIO()
    torch.save(resumable, buffer)
    write_atomically(resume_path, buffer.getvalue())


def _restore(state: _State, path: Path, config: ModelConfig, dataset: Dataset, options: TrainingOptions) -> None:
    if not path.is_file():
        raise TrainingError(f"{path}: expected the state of an earlier run to resume, found no such file")
    try:
        saved = torch.load(path, map_location=options.device, weights_only=True)
    except Exception as error:  # on damaged bytes the unpickler raises whatever it stumbles over
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise TrainingError(f"{path}: expected the state of an earlier run, found {reason}") from error
    if (found := saved["run"]) != (expected := _run_key(config, dataset, options)):
        raise TrainingError(f"{path}: expected a run of {expected}, found {found}")
    state.model.load_state_dict(saved["model"])
    state.optimizer.load_state_dict(saved["optimizer"])
    state.generator.set_state(saved["order"].cpu())
    torch.set_rng_state(saved["dropout"].cpu())
    state.series.extend(Epoch(**epoch) for epoch in saved["series"])


def _run_key(config: ModelConfig, dataset: Dataset, options: TrainingOptions) -> str:
    """What must agree for one run to go on where another stopped: all but the number of epochs and the device."""
    return f"{config.to_json()} on {dataset.name}, batch {options.batch_size}, lr {options.lr}, seed {options.seed}"
