"""The training loop: dataset -> checkpoint and the study's four series.

In: `TrainingOptions` and a `Dataset`. Out: after every epoch the checkpoint, its series (.json) and its state
(.resume.pt). Times exclude data loading, except those of a teacher's stored epochs.
"""

from __future__ import annotations

import copy
import io
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.files import typed_command, write_atomically
from models import checkpoint
from models.augmentation import augmentation
from models.config import INPUT_SCALE, ModelConfig
from models.data import Dataset, hold_out
from models.data.drawn import with_drawn
from models.deepen import deepen
from models.evaluation import (
    TEST_BATCH,
    accuracy_by_class,
    classify,
    measure_accuracy,
    measure_calibration,
    on_device,
)
from models.metrics import Metrics
from models.norms import anneal
from models.recipe import Diverged, Epoch, TrainingError, TrainingOptions, depends_on_epochs
from models.registry import build, channels_last
from models.state_dict_file import unpickling_reason
from models.teacher import load_teacher, open_folder, targets
from models.vit import AttentionOf, VisionTransformer, cheaper_attention, plain_attention, row_attention

RESUME = ".resume.pt"


@dataclass
class State:
    """`key`: what must agree to resume."""

    key: str
    model: nn.Module
    average: nn.Module | None
    teacher: nn.Module | None
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    order: torch.Generator  # of the images
    random: Tensor  # PyTorch's own generator, for dropout and distortions
    series: list[Epoch]
    best: nn.Module | None = None  # of the epochs so far, on the pictures that a folder holds apart
    best_epoch: int = 0

    @property
    def now(self) -> nn.Module:
        return self.average or self.model

    @property
    def kept(self) -> nn.Module:
        return self.best or self.now

    @property
    def kept_epoch(self) -> int:
        return self.best_epoch or len(self.series)


def train(
    config: ModelConfig,
    dataset: Dataset,
    options: TrainingOptions,
    output: Path,
    resume: bool = False,
    on_batch: Callable[[int, float], None] = lambda images, loss: None,
    test_batch: int = TEST_BATCH,
) -> Iterator[Epoch]:
    """Yields each epoch once its checkpoint is on disk.

    `on_batch` gets a batch's number of images and loss; `resume` continues exactly. Raises Diverged, and TrainingError
    without a run to resume.
    """
    part = hold_out(dataset, options.hold_out) if options.hold_out else dataset
    part = with_drawn(part, options.drawn) if options.drawn else part
    if not _batches(torch.arange(len(part.train_labels)), options.batch_size):
        found = f"{len(part.train_labels)} training images in batches of {options.batch_size}"
        raise TrainingError(f"{dataset.name}: expected a batch of two images or more, found {found}")
    state = _start(config, options, len(part.train_labels), _run_key(config, dataset, options))
    if resume:
        _restore(state, output.with_suffix(RESUME), dataset, options.device)
    images, labels = on_device(part.train_images, part.train_labels, options.device)
    test_images, test_labels = on_device(part.test_images, part.test_labels, options.device)
    distort = augmentation(options.augment)
    draw = partial(_draw, images, labels, distort)
    folder = open_folder(Path(options.teacher_cache), part, images, config, options) if options.teacher_cache else None
    for number in range(len(state.series) + 1, options.epochs + 1):
        start = time.perf_counter()
        if folder:
            seen, probabilities = folder.epoch(number)
            draw = partial(_draw, seen, targets(probabilities, labels), nn.Identity())
        loss = _train_epoch(state, draw, len(labels), options, on_batch)
        training_time_s = time.perf_counter() - start
        start = time.perf_counter()
        accuracy, by_class = None, []
        if not _tests_once(dataset, options):
            distorted = distort if options.augment_test else None
            right = classify(state.now, test_images, distorted, test_batch).argmax(1) == test_labels
            accuracy, by_class = (
                int(right.sum()) / len(right),
                accuracy_by_class(right, test_labels, config.num_classes),
            )
        epoch = Epoch(number, training_time_s, time.perf_counter() - start, loss, accuracy, by_class)
        state.series.append(epoch)
        if dataset.held is not None:
            _keep_best(state)
        _write(state, output, config, dataset, _metrics(state, dataset, options, len(labels)))
        yield epoch


def _tests_once(dataset: Dataset, options: TrainingOptions) -> bool:
    """A folder's test part says at the end how good the network is, so it must not choose it before."""
    return dataset.pictures is not None and not options.hold_out


def _keep_best(state: State) -> None:
    """The later of equals has seen more."""
    accuracies = [epoch.test_accuracy or 0.0 for epoch in state.series]
    if accuracies[-1] == max(accuracies):
        state.best, state.best_epoch = copy.deepcopy(state.now), len(state.series)


def _start(config: ModelConfig, options: TrainingOptions, images: int, key: str) -> State:
    torch.manual_seed(options.seed)
    try:
        model = build(config, _attention(config, options)).to(options.device)
    except (RuntimeError, TypeError, OverflowError) as error:  # the sizes are sound, so they are too large
        if isinstance(error, RuntimeError) and not (_is_out_of_memory(error) or "overflow" in str(error)):
            raise
        found = ", ".join(
            f"{name} {getattr(config, name)}" for name in ("depth", "dim", "heads", "dim_head", "mlp_dim")
        )
        raise TrainingError(f"{options.device}: expected a network that fits its memory, found {found}") from error
    if options.device == "cpu" and not isinstance(model, VisionTransformer):
        channels_last(model)
    if options.init:
        _load_weights(model, Path(options.init))
    average = copy.deepcopy(model) if options.ema is not None else None
    teacher = None
    if options.teacher and not options.teacher_cache:
        teacher = load_teacher(Path(options.teacher), config).model.to(options.device)
    torch.manual_seed(options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=options.weight_decay, fused=True)
    schedule: torch.optim.lr_scheduler.LRScheduler
    if options.schedule == "one-cycle":
        steps = (
            options.epochs * len(_batches(torch.arange(images), options.batch_size)) + 1
        )  # the scheduler steps at its creation
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, total_steps=steps)
    else:
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    order = torch.Generator().manual_seed(options.seed)
    return State(key, model, average, teacher, optimizer, schedule, order, torch.get_rng_state(), [])


def _attention(config: ModelConfig, options: TrainingOptions) -> AttentionOf:
    """On a CPU 1.9 times as fast with six blocks as published; a GPU's times are of the published form."""
    if options.last_block == "row" and config.reads_row:
        return row_attention
    return cheaper_attention if options.device == "cpu" else plain_attention


def _load_weights(model: nn.Module, path: Path) -> None:
    try:
        weights: Mapping[str, Tensor] = checkpoint.load(path).model.state_dict()
    except checkpoint.CheckpointError as error:
        raise TrainingError(f"init {error}") from error
    own = model.state_dict()
    if isinstance(model, VisionTransformer):
        weights = deepen(weights, model.config.depth)
    for name in sorted(own.keys() | weights.keys()):
        shapes = [tuple(tensors[name].shape) if name in tensors else "none" for tensors in (own, weights)]
        if shapes[0] != shapes[1]:
            raise TrainingError(f"init {path}: expected {name} {shapes[0]}, found {shapes[1]}")
    model.load_state_dict(weights)


def _batches(order: Tensor, batch_size: int) -> list[Tensor]:
    """Indices (n,) in batches. Drops a last batch of one image: BatchNorm has no variance of it."""
    return [batch for batch in order.split(batch_size) if len(batch) >= 2]


def _train_epoch(
    state: State,
    draw: Callable[[Tensor], tuple[Tensor, Tensor]],
    images: int,
    options: TrainingOptions,
    on_batch: Callable[[int, float], None],
) -> float:
    """The mean loss."""
    state.model.train()
    torch.set_rng_state(state.random)  # other trainings use the same generator
    order = torch.randperm(images, generator=state.order).to(options.device)
    total, trained_on = torch.zeros((), device=options.device), 0
    batches = _batches(order, options.batch_size)
    for number, batch in enumerate(batches):
        for network in filter(None, (state.model, state.average)):
            anneal(network, (len(state.series) + number / len(batches)) / options.epochs)
        loss = _step(state, *draw(batch), options)
        if not math.isfinite(value := loss.item()):
            raise Diverged(f"training loss: expected a finite number, found {value}; try a lower --lr")
        total += loss * len(batch)
        trained_on += len(batch)
        on_batch(len(batch), value)
    state.random = torch.get_rng_state()
    return float(total) / trained_on


def _draw(images: Tensor, target: Tensor, distort: Callable[[Tensor], Tensor], chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Images uint8 (n, C, H, W), targets (n, ...), indices (b,) -> pixels in [0, 1] and targets, b of each."""
    return distort(images[chosen] * INPUT_SCALE), target[chosen]


def _step(state: State, pixels: Tensor, labels: Tensor, options: TrainingOptions) -> Tensor:
    """Pixels (B, C, H, W), labels (B,) or probabilities (B, num_classes) -> the loss."""
    state.optimizer.zero_grad(set_to_none=True)
    try:
        loss = _loss(state, pixels, labels, options)
        loss.backward()
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        raise TrainingError(
            f"{options.device}: out of memory with batches of {options.batch_size}; lower --batch-size"
        ) from error
    if options.clip is not None:
        nn.utils.clip_grad_norm_(state.model.parameters(), options.clip)
    state.optimizer.step()
    state.schedule.step()
    if state.average is not None and options.ema is not None:
        _follow(state.average, state.model, max(1 - options.ema, 1 / state.schedule.last_epoch))
    return loss.detach()


@torch.no_grad()
def _follow(average: nn.Module, model: nn.Module, share: float) -> None:
    """average += share (model - average), of weights and statistics."""
    ours, theirs = ([*network.parameters(), *network.buffers()] for network in (average, model))
    pairs = list(zip(ours, theirs, strict=True))
    moving = [(mine, other) for mine, other in pairs if mine.is_floating_point()]
    torch._foreach_lerp_([mine for mine, _ in moving], [other for _, other in moving], share)
    for mine, other in pairs:
        if not mine.is_floating_point():
            mine.copy_(other)


def _loss(state: State, pixels: Tensor, labels: Tensor, options: TrainingOptions) -> Tensor:
    with torch.autocast(pixels.device.type, torch.bfloat16, enabled=options.precision == "bf16"):
        if state.teacher is not None:
            with torch.no_grad():
                labels = targets(state.teacher(pixels).softmax(1), labels)
        return F.cross_entropy(state.model(pixels), labels, label_smoothing=options.label_smoothing)


def _is_out_of_memory(error: RuntimeError) -> bool:
    """The CPU's allocator raises a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _write(state: State, output: Path, config: ModelConfig, dataset: Dataset, metrics: Metrics) -> None:
    epochs = [asdict(epoch) for epoch in state.series]
    resumable = {
        "run": state.key,
        "images": len(dataset.train_labels),
        "pictures": dataset.pictures,
        "best": None if state.best is None else state.best.state_dict(),
        "best_epoch": state.best_epoch,
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
    write_atomically(output.with_suffix(RESUME), buffer.getvalue())


def _metrics(state: State, dataset: Dataset, options: TrainingOptions, images: int) -> Metrics:
    """With held-out images, and of a folder, only the last epoch uses the test images."""
    last, kept = state.series[-1], state.series[state.kept_epoch - 1]
    metrics: Metrics = {
        "dataset": dataset.name,
        "epochs": last.epoch,
        "command": typed_command(),
        "options": asdict(options),
        "kept_epoch": kept.epoch,
        "last_batch": len(_batches(torch.arange(images), options.batch_size)[-1]),
        "test_images": len(dataset.test_labels),
        **({"data_dir": dataset.folder} if dataset.folder else {}),
        **({"pictures": dataset.pictures} if dataset.pictures else {}),
    }
    if options.hold_out:
        metrics["held_out_accuracy"] = kept.test_accuracy
    elif not _tests_once(dataset, options):
        return metrics | {"test_accuracy": last.test_accuracy}
    if last.epoch == options.epochs:
        test = on_device(dataset.test_images, dataset.test_labels, options.device)
        metrics["test_accuracy"] = measure_accuracy(state.kept, *test)
        if options.hold_out:
            metrics |= measure_calibration(state.kept, dataset, options.hold_out)
    return metrics


def _restore(state: State, path: Path, dataset: Dataset, device: str) -> None:
    if not path.is_file():
        raise TrainingError(f"{path}: expected the state of an earlier run to resume, found no such file")
    try:
        saved = torch.load(path, map_location=device, weights_only=True)
        found = saved["run"]
    except Exception as error:  # damaged bytes, and other objects, raise any exception
        reason = unpickling_reason(error)
        raise TrainingError(f"{path}: expected the state of an earlier run, found {reason}") from error
    if found != state.key:
        differ = _lacking(state.key, str(found)), _lacking(str(found), state.key)
        raise TrainingError(f"{path}: expected a run of {differ[0]}, found {differ[1]}")
    images = len(dataset.train_labels)
    if saved.get("images", images) != images:
        raise TrainingError(f"{path}: expected a run of {images} training images, found {saved['images']}")
    if saved.get("pictures") != dataset.pictures:
        raise TrainingError(f"{path}: expected a run of the pictures in {dataset.name}, found other pictures")
    state.model.load_state_dict(saved["model"])
    if state.average is not None:
        state.average.load_state_dict(saved["average"])
    state.optimizer.load_state_dict(saved["optimizer"])
    state.schedule.load_state_dict(saved["schedule"])
    state.order.set_state(saved["order"].cpu())
    state.random = saved["random"].cpu()
    if saved.get("best") is not None:
        state.best, state.best_epoch = copy.deepcopy(state.now), saved["best_epoch"]
        state.best.load_state_dict(saved["best"])
    state.series.extend(Epoch(**epoch) for epoch in saved["series"])


def _lacking(key: str, other: str) -> str:
    """The parts of a run's key that another lacks."""
    parts = other.split(", ")
    return ", ".join(part for part in key.split(", ") if part not in parts) or "none of it"


def _run_key(config: ModelConfig, dataset: Dataset, options: TrainingOptions) -> str:
    same = asdict(options)
    del same["device"]
    if not depends_on_epochs(config, options):
        del same["epochs"]
    read = f"{dataset.name} {dataset.load_options}".rstrip()
    return f"{config.to_json()} on {read}, {json.dumps(same)}"
