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
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import checkpoint, distributed
from models.augmentation import Augmentation, augmentation
from models.config import INPUT_SCALE, ModelConfig
from models.data import Dataset, hold_out
from models.files import write_atomically
from models.norms import anneal
from models.registry import build

TEST_BATCH = 100  # a larger one leaves the cache: at 1000 the same takes twice as long


class TrainingError(Exception):
    """Training that cannot start or go on; the message says what was expected and what was found."""


class Diverged(TrainingError):
    """A training whose loss or logits are no longer finite; its last good checkpoint is kept."""


@dataclass(frozen=True)
class TrainingOptions:
    """How a model is trained: AdamW (Loshchilov and Hutter, 2019) on the cross-entropy; without decay that is Adam.

    `one-cycle` (Smith and Topin, 2019) warms up to `lr` and anneals to nearly 0 over all epochs; `clip` bounds the norm
    of the gradient; `bf16` computes the products in bfloat16 where PyTorch's autocast deems it safe, the weights stay
    float32. Of the training images `hold_out` are kept back: epochs are then measured on these, and the test images are
    looked at once, after the last. `teacher` is the checkpoint of a network whose probabilities, for the very pixels
    that the model sees, are half of what it learns (distillation: Hinton et al., 2015; its use for transformers:
    Touvron et al., DeiT, 2021); the labels are the other half. `accumulate` goes through every batch in so many parts
    one after the other, which needs that much less memory for the same gradient, but that BatchNorm sees parts.
    """

    epochs: int
    batch_size: int
    lr: float
    seed: int
    device: str
    schedule: Literal["constant", "one-cycle"] = "constant"
    weight_decay: float = 0.0
    label_smoothing: float = 0.0
    clip: float | None = None
    precision: Literal["fp32", "bf16"] = "fp32"
    augment: Augmentation = "none"
    augment_test: bool = False  # distort what epochs are measured on too, as the study did
    hold_out: int = 0
    teacher: str | None = None
    accumulate: int = 1


@dataclass(frozen=True)
class Epoch:
    """The four series of the study at one epoch: times in seconds, mean training loss, test accuracy in [0, 1].

    Where images are held out, they are what is measured in the place of the test images.
    """

    epoch: int
    training_time_s: float
    test_time_s: float
    training_loss: float
    test_accuracy: float


@dataclass
class _State:
    model: nn.Module
    teacher: nn.Module | None
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    order: torch.Generator  # draws the order of the images; the seed decides it alone
    random: Tensor  # where PyTorch's own generator stands, which draws dropout and distortions
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
    test_batch: int = TEST_BATCH,
) -> Iterator[Epoch]:
    """Trains, yielding each epoch after its checkpoint is on disk, so that an interrupted run loses one at most.

    `on_batch` is called with the images done and the loss; test images are classified `test_batch` at a time. With
    `resume` the run at `output` goes on, epoch for epoch as if it had never stopped. Raises TrainingError when the loss
    is no longer finite, or there is nothing to resume.
    """
    if options.batch_size % distributed.processes():
        raise TrainingError(
            f"batch size: expected a multiple of the {distributed.processes()} processes, found {options.batch_size}"
        )
    part = hold_out(dataset, options.hold_out) if options.hold_out else dataset
    state = _start(config, options, len(part.train_labels))
    resume_path = output.with_suffix(".resume.pt")
    if resume:
        _restore(state, resume_path, config, dataset, options)
    images, labels = _on_device(part.train_images, part.train_labels, options.device)
    test_images, test_labels = _on_device(part.test_images, part.test_labels, options.device)
    distort = augmentation(options.augment)
    for number in range(len(state.series) + 1, options.epochs + 1):
        start = time.perf_counter()
        loss = _train_epoch(state, images, labels, options, distort, on_batch)
        training_time_s = time.perf_counter() - start
        start = time.perf_counter()
        distorted = distort if options.augment_test else None
        accuracy = measure_accuracy(state.model, test_images, test_labels, distorted, test_batch)
        epoch = Epoch(number, training_time_s, time.perf_counter() - start, loss, accuracy)
        state.series.append(epoch)
        _write(state, output, resume_path, config, dataset, options)
        yield epoch


def _start(config: ModelConfig, options: TrainingOptions, images: int) -> _State:
    """A network as the seed initialises it, alike in every process, and nothing learned yet."""
    torch.manual_seed(options.seed)
    model = build(config).to(options.device)
    teacher = _load_teacher(Path(options.teacher), config).to(options.device) if options.teacher else None
    distributed.manual_seed(options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=options.weight_decay, fused=True)
    schedule: torch.optim.lr_scheduler.LRScheduler
    if options.schedule == "one-cycle":
        steps = options.epochs * len(_batches(torch.arange(images), options.batch_size)) + 1  # the first is at once
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, total_steps=steps)
    else:
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    order = torch.Generator().manual_seed(options.seed)
    return _State(model, teacher, optimizer, schedule, order, torch.get_rng_state(), [])


def _load_teacher(path: Path, config: ModelConfig) -> nn.Module:
    """The network in `path`, in eval mode; TrainingError where it sees other images or tells other classes."""
    try:
        teacher = checkpoint.load(path)
    except checkpoint.CheckpointError as error:
        raise TrainingError(f"teacher {error}") from error
    for name in ("channels", "image_size", "num_classes"):
        if (expected := getattr(config, name)) != (found := getattr(teacher.config, name)):
            raise TrainingError(f"teacher {path}: expected {name} {expected}, found {found}")
    return teacher.model


def measure_accuracy(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    distort: Callable[[Tensor], Tensor] | None = None,
    batch_size: int = TEST_BATCH,
) -> float:
    """The share of uint8 `images` (n, C, H, W) that `model`, in eval mode, gives the class in int64 `labels` (n,).

    `distort` is applied to the images (B, C, H, W) in [0, 1] first. Raises Diverged for logits that are not finite.
    """
    model.eval()
    right = 0
    with torch.inference_mode():
        for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True):
            pixels = x * INPUT_SCALE
            logits = model(distort(pixels) if distort else pixels)  # (B, num_classes)
            if not logits.isfinite().all():
                raise Diverged("test logits: expected finite numbers, found others; try a lower --lr")
            right += int((logits.argmax(1) == y).sum())
    return right / len(labels)


def _on_device(images: Any, labels: Any, device: str) -> tuple[Tensor, Tensor]:
    return torch.tensor(images, device=device), torch.tensor(labels, device=device)


def _batches(order: Tensor, batch_size: int) -> list[Tensor]:
    """The indices (n,) in batches that all processes can share evenly.

    The last, short one is left out where it holds less than two images a process: BatchNorm has no variance of one
    image. Another order leaves others out.
    """
    share = distributed.processes()
    batches = [batch[: len(batch) // share * share] for batch in order.split(batch_size)]
    return [batch for batch in batches if len(batch) >= 2 * share]


def _train_epoch(
    state: _State,
    images: Tensor,
    labels: Tensor,
    options: TrainingOptions,
    distort: Callable[[Tensor], Tensor],
    on_batch: Callable[[int, float], None],
) -> float:
    """One pass over all images in a new order; returns the mean loss over all processes."""
    state.model.train()
    torch.set_rng_state(state.random)  # others may have drawn since
    order = torch.randperm(len(images), generator=state.order).to(images.device)
    total, trained_on = torch.zeros((), device=images.device), 0
    batches = _batches(order, options.batch_size)
    for number, batch in enumerate(batches):
        anneal(state.model, (len(state.series) + number / len(batches)) / options.epochs)
        share = batch[distributed.rank() :: distributed.processes()]
        loss = _step(state, distort(images[share] * INPUT_SCALE), labels[share], options)
        if not math.isfinite(value := loss.item()):
            raise Diverged(f"training loss: expected a finite number, found {value}; try a lower --lr")
        total += loss * len(batch)
        trained_on += len(batch)
        on_batch(len(batch), value)
    distributed.average_buffers(state.model)
    state.random = torch.get_rng_state()
    return distributed.sum_over_processes(total) / distributed.processes() / trained_on


def _step(state: _State, pixels: Tensor, labels: Tensor, options: TrainingOptions) -> Tensor:
    """Learns from one batch of pixels (B, C, H, W) and labels (B,); returns its loss."""
    state.optimizer.zero_grad(set_to_none=True)
    parts = min(options.accumulate, len(labels) // 2)  # of one image BatchNorm has no variance
    total = torch.zeros((), device=pixels.device)
    try:
        for x, y in zip(pixels.tensor_split(parts), labels.tensor_split(parts), strict=True):
            loss = _loss(state, x, y, options) * (len(y) / len(labels))
            loss.backward()
            total += loss.detach()
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        raise TrainingError(
            f"{options.device}: out of memory with batches of {options.batch_size} in {parts} parts; "
            f"raise --accumulate, which trains the same, or lower --batch-size"
        ) from error
    distributed.average_gradients(state.model)
    if options.clip is not None:
        nn.utils.clip_grad_norm_(state.model.parameters(), options.clip)
    state.optimizer.step()
    state.schedule.step()
    return total


def _loss(state: _State, pixels: Tensor, labels: Tensor, options: TrainingOptions) -> Tensor:
    """The mean loss over pixels (B, C, H, W) with labels (B,)."""
    with torch.autocast(pixels.device.type, torch.bfloat16, enabled=options.precision == "bf16"):
        target = labels if state.teacher is None else _distilled(state.teacher, pixels, labels)
        return F.cross_entropy(state.model(pixels), target, label_smoothing=options.label_smoothing)


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device said so; the CPU's allocator has no error of its own."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _distilled(teacher: nn.Module, pixels: Tensor, labels: Tensor) -> Tensor:
    """What is to be learned of pixels (B, C, H, W): (B, num_classes), half the labels (B,), half the teacher's."""
    with torch.no_grad():
        probabilities: Tensor = teacher(pixels).softmax(1)
    return (F.one_hot(labels, probabilities.shape[1]) + probabilities) / 2


def command_line(config: ModelConfig, dataset: str, options: TrainingOptions) -> str:
    """The command that trains the same again."""
    words = ["python models/train.py", f"--model {config.model}", f"--dataset {dataset}", f"--depth {config.depth}"]
    for field in fields(options):
        value, option = getattr(options, field.name), f"--{field.name.replace('_', '-')}"
        if value != field.default and field.name != "device":
            words.append(option if value is True else f"{option} {value}")
    return " ".join(words)


def _write(
    state: _State, output: Path, resume_path: Path, config: ModelConfig, dataset: Dataset, options: TrainingOptions
) -> None:
    random = distributed.gather(state.random)
    if distributed.rank() != 0:
        return
    metrics = _metrics(state, config, dataset, options)
    epochs = [asdict(epoch) for epoch in state.series]
    resumable = {
        "run": _run_key(config, dataset, options),
        "model": state.model.state_dict(),
        "optimizer": state.optimizer.state_dict(),
        "schedule": state.schedule.state_dict(),
        "order": state.order.get_state(),
        "random": random,
        "series": epochs,
    }
    buffer = io.BytesIO()
    torch.save(resumable, buffer)
    checkpoint.save(output, state.model, config, metrics)
    series = metrics | {"config": asdict(config), "series": epochs}
    write_atomically(output.with_suffix(".json"), json.dumps(series, indent=2).encode())
    write_atomically(resume_path, buffer.getvalue())


def _metrics(state: _State, config: ModelConfig, dataset: Dataset, options: TrainingOptions) -> checkpoint.Metrics:
    """What the checkpoint says of itself; test images are looked at after the last epoch only, if some are held out."""
    last = state.series[-1]
    metrics: checkpoint.Metrics = {
        "dataset": dataset.name,
        "epochs": last.epoch,
        "command": command_line(config, dataset.name, options),
        "options": asdict(options),
        "test_images": len(dataset.test_labels),
    }
    if not options.hold_out:
        return metrics | {"test_accuracy": last.test_accuracy}
    metrics["held_out_accuracy"] = last.test_accuracy
    if last.epoch == options.epochs:
        test = _on_device(dataset.test_images, dataset.test_labels, options.device)
        metrics["test_accuracy"] = measure_accuracy(state.model, *test)
    return metrics


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
    state.schedule.load_state_dict(saved["schedule"])
    state.order.set_state(saved["order"].cpu())
    state.random = saved["random"][distributed.rank()].cpu()
    state.series.extend(Epoch(**epoch) for epoch in saved["series"])


def _run_key(config: ModelConfig, dataset: Dataset, options: TrainingOptions) -> str:
    """What must agree for one run to go on where another stopped: all but the device and, at a constant rate, the
    number of epochs, unless the norms follow it.
    """
    same = asdict(options) | {"processes": distributed.processes()}
    del same["device"]
    if options.schedule == "constant" and config.model != "vit-prepbn":
        del same["epochs"]
    return f"{config.to_json()} on {dataset.name}, {json.dumps(same)}"
