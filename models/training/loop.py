"""The training loop: dataset -> checkpoint and, of every epoch, times, loss and accuracy.

In: `TrainingOptions` and a `Dataset`. Out: the checkpoint, its series (.json) and its state (.resume.pt). Times
exclude data loading, except those of a teacher's stored epochs.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.data import Dataset, hold_out
from models.data.drawn_digits import with_drawn
from models.data.outlier_exposure import with_outliers
from models.evaluation.accuracy_and_calibration import (
    TEST_BATCH,
    accuracy_by_class,
    classify,
    on_device,
)
from models.networks.config import INPUT_SCALE, ModelConfig
from models.networks.foldable_norms import anneal
from models.training.augmentation import augmentation
from models.training.mixing import as_probabilities, mixing
from models.training.recipe import Diverged, Epoch, TrainingError, TrainingOptions
from models.training.state import (
    RESUME,
    State,
    batches_of,
    is_out_of_memory,
    metrics_of,
    restore,
    run_key,
    snapshot,
    stamp,
    start,
    tests_once,
    write,
)
from models.training.teacher import open_cache, targets

WRITE_EVERY_S = 5.0  # a write takes 20 ms of processor time, as much as a short epoch; a kill loses these seconds


def train(
    config: ModelConfig,
    dataset: Dataset,
    options: TrainingOptions,
    output: Path | None,
    resume: bool = False,
    on_batch: Callable[[int, float], None] = lambda images, loss: None,
    test_batch: int = TEST_BATCH,
) -> Generator[Epoch, None, None]:
    """Yields each epoch. `output` None: writes nothing, and judges the last epoch alone.

    Writes the first epoch, the last, others every WRITE_EVERY_S, and the newest when the caller closes the generator or
    an error ends the training. `on_batch` gets a batch's number of images and loss. `resume` continues as if the run
    had never stopped. Raises Diverged, and TrainingError if there is no run to resume or another training writes to
    `output`.
    """
    unwritten, due_s = None, 0.0
    states = _states(config, dataset, options, output, resume, on_batch, test_batch)
    try:
        for state in states:
            unwritten = snapshot(state) if output else None
            if output and unwritten and (len(state.series) == options.epochs or time.monotonic() >= due_s):
                write(unwritten, output, config, dataset, metrics_of(unwritten, dataset, options))
                state.stamp, unwritten, due_s = unwritten.stamp, None, time.monotonic() + WRITE_EVERY_S
            yield state.series[-1]
    finally:
        if output and unwritten:
            write(unwritten, output, config, dataset, metrics_of(unwritten, dataset, options))


def _states(
    config: ModelConfig,
    dataset: Dataset,
    options: TrainingOptions,
    output: Path | None,
    resume: bool,
    on_batch: Callable[[int, float], None],
    test_batch: int,
) -> Generator[State, None, None]:
    """Yields the state after each epoch."""
    part = hold_out(dataset, options.hold_out) if options.hold_out else dataset
    part = with_drawn(part, options.drawn) if options.drawn else part
    part = with_outliers(part, options.outliers) if options.outliers else part
    if not batches_of(torch.arange(len(part.train_labels)), options.batch_size):
        found = f"{len(part.train_labels)} training images in batches of {options.batch_size}"
        raise TrainingError(f"{dataset.name}: expected a batch of two images or more, found {found}")
    state = start(config, options, len(part.train_labels), run_key(config, dataset, options))
    state.stamp = stamp(output) if output else None
    if output and resume:
        restore(state, output.with_suffix(RESUME), dataset, options.device)
    images, labels = on_device(part.train_images, part.train_labels, options.device)
    test_images, test_labels = on_device(part.test_images, part.test_labels, options.device)
    distort = augmentation(options.augment)
    mix = mixing(options.mixup, options.cutmix)
    shared = options.mixup or options.cutmix or (options.outliers and not options.teacher)
    target = as_probabilities(labels, config.num_classes) if shared else labels
    draw = partial(_draw, images, target, distort, mix)
    cache = open_cache(Path(options.teacher_cache), part, images, config, options) if options.teacher_cache else None
    for number in range(len(state.series) + 1, options.epochs + 1):
        began_s = time.perf_counter()
        if cache:
            distorted_images, probabilities = cache.epoch(number)
            draw = partial(_draw, distorted_images, targets(probabilities, labels), nn.Identity(), mix)
        loss = _train_epoch(state, draw, len(labels), options, on_batch)
        training_time_s = time.perf_counter() - began_s
        began_s = time.perf_counter()
        accuracy, by_class = None, []
        if not tests_once(dataset, options) and (output or number == options.epochs):
            distorted = distort if options.augment_test else None
            right = classify(state.latest, test_images, distorted, test_batch).argmax(1) == test_labels
            accuracy, by_class = (
                int(right.sum()) / len(right),
                accuracy_by_class(right, test_labels, config.num_classes),
            )
        epoch = Epoch(number, training_time_s, time.perf_counter() - began_s, loss, accuracy, by_class)
        state.series.append(epoch)
        if dataset.held is not None:
            _keep_best(state)
        yield state


def _keep_best(state: State) -> None:
    """Keeps a copy of the network if no earlier epoch was better. Of equal epochs the latest has seen more."""
    accuracies = [epoch.test_accuracy or 0.0 for epoch in state.series]
    if accuracies[-1] == max(accuracies):
        state.best, state.best_epoch = copy.deepcopy(state.latest), len(state.series)


def _train_epoch(
    state: State,
    draw: Callable[[Tensor], tuple[Tensor, Tensor]],
    images: int,
    options: TrainingOptions,
    on_batch: Callable[[int, float], None],
) -> float:
    """Returns the mean loss."""
    state.model.train()
    torch.set_rng_state(state.random)  # other trainings use the same generator
    order = torch.randperm(images, generator=state.order).to(options.device)
    total, trained_on = torch.zeros((), device=options.device), 0
    batches = batches_of(order, options.batch_size)
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


def _draw(
    images: Tensor,
    target: Tensor,
    distort: Callable[[Tensor], Tensor],
    mix: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    chosen: Tensor,
) -> tuple[Tensor, Tensor]:
    """A batch. Images uint8 (n, C, H, W), targets (n, ...), indices (b,) -> pixels in [0, 1] and targets, b of each."""
    return mix(distort(images[chosen] * INPUT_SCALE), target[chosen])


def _step(state: State, pixels: Tensor, labels: Tensor, options: TrainingOptions) -> Tensor:
    """Pixels (B, C, H, W), labels (B,) or probabilities (B, num_classes) -> the loss."""
    state.optimizer.zero_grad(set_to_none=True)
    try:
        loss = _loss(state, pixels, labels, options)
        loss.backward()
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise TrainingError(
            f"{options.device}: out of memory with batches of {options.batch_size}; lower --batch-size"
        ) from error
    if options.clip is not None:
        nn.utils.clip_grad_norm_(state.model.parameters(), options.clip)
    state.optimizer.step()
    state.schedule.step()
    if state.average is not None and options.ema is not None:
        _move_average(state.average, state.model, max(1 - options.ema, 1 / state.schedule.last_epoch))
    return loss.detach()


@torch.no_grad()
def _move_average(average: nn.Module, model: nn.Module, share: float) -> None:
    """average += share (model - average), of weights and statistics."""
    tensors = ([*network.parameters(), *network.buffers()] for network in (average, model))
    pairs = list(zip(*tensors, strict=True))
    floating = [(mean, newest) for mean, newest in pairs if mean.is_floating_point()]
    torch._foreach_lerp_([mean for mean, _ in floating], [newest for _, newest in floating], share)
    for mean, newest in pairs:
        if not mean.is_floating_point():  # a counter
            mean.copy_(newest)


def _loss(state: State, pixels: Tensor, labels: Tensor, options: TrainingOptions) -> Tensor:
    with torch.autocast(pixels.device.type, torch.bfloat16, enabled=options.precision == "bf16"):
        if state.teacher is not None:
            with torch.no_grad():
                labels = targets(state.teacher(pixels).softmax(1), labels)
        return F.cross_entropy(state.model(pixels), labels, label_smoothing=options.label_smoothing)
