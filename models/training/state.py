"""The state of a training between two epochs: starts it, writes it to disk, restores it.

In: a configuration, `TrainingOptions` and a `Dataset`. Out: `State`; checkpoint, series (.json) and state (.resume.pt).
"""

from __future__ import annotations

import copy
import io
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from common.files import typed_command, write_atomically
from models.checkpoints import checkpoint
from models.checkpoints.metrics import Metrics
from models.checkpoints.safe_torch_load import unpickling_reason
from models.data import Dataset
from models.evaluation.accuracy_and_calibration import (
    FEWEST,
    measure_accuracy,
    measure_calibration,
    on_device,
)
from models.networks.config import ModelConfig
from models.networks.registry import build, channels_last
from models.networks.vit import AttentionOf, VisionTransformer, cheaper_attention, plain_attention, row_attention
from models.training.deepen import deepen
from models.training.recipe import Epoch, TrainingError, TrainingOptions, depends_on_epochs
from models.training.teacher import load_teacher

RESUME = ".resume.pt"


@dataclass
class State:
    """`key`: text of the configuration, data and options that must agree to resume. `images`: those trained
    on. `random`: the state of PyTorch's own generator. `stamp`: of the checkpoint on disk, as `stamp` gives it.
    """

    key: str
    images: int
    model: nn.Module
    average: nn.Module | None
    teacher: nn.Module | None
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    order: torch.Generator  # of the images
    random: Tensor  # PyTorch's own generator, for dropout and distortions
    series: list[Epoch]
    best: nn.Module | None = None  # of the epochs so far, by the pictures that a folder holds apart
    best_epoch: int = 0
    stamp: tuple[int, int] | None = None

    @property
    def parts(self) -> dict[str, Any]:
        """What has a state dict of its own, by name."""
        return {name: getattr(self, name) for name in ("model", "average", "optimizer", "schedule")}

    @property
    def latest(self) -> nn.Module:
        """The network after the last step: the moving average, if there is one."""
        return self.average or self.model

    @property
    def kept(self) -> nn.Module:
        """The network that goes into the checkpoint: of the best epoch, else of the last."""
        return self.best or self.latest

    @property
    def kept_epoch(self) -> int:
        return self.best_epoch or len(self.series)


def start(config: ModelConfig, options: TrainingOptions, images: int, key: str) -> State:
    """The state before the first epoch. `images`: number of training images. Raises TrainingError."""
    torch.manual_seed(options.seed)
    try:
        model = build(config, _attention(config, options)).to(options.device)
    except (RuntimeError, TypeError, OverflowError) as error:  # ModelConfig checked the sizes: they are too large
        if isinstance(error, RuntimeError) and not (is_out_of_memory(error) or "overflow" in str(error)):
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
        steps = options.epochs * len(batches_of(torch.arange(images), options.batch_size))
        steps += 1  # the scheduler steps at its creation
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, total_steps=steps)
    else:
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    order = torch.Generator().manual_seed(options.seed)
    return State(key, images, model, average, teacher, optimizer, schedule, order, torch.get_rng_state(), [])


def _attention(config: ModelConfig, options: TrainingOptions) -> AttentionOf:
    """With `last_block` row the last block computes only the CLS row. Else a CPU gets absorbed attention, which trains
    six blocks 1.9 times as fast, and a GPU the published form: its times are compared with the published times.
    """
    if options.last_block == "row" and config.reads_row:
        return row_attention
    return cheaper_attention if options.device == "cpu" else plain_attention


def _load_weights(model: nn.Module, path: Path) -> None:
    try:
        weights: Mapping[str, Tensor] = checkpoint.load(path).model.state_dict()
    except checkpoint.CheckpointError as error:
        raise TrainingError(f"init {error}") from error
    expected = model.state_dict()
    if isinstance(model, VisionTransformer):
        weights = deepen(weights, model.config.depth)
    for name in sorted(expected.keys() | weights.keys()):
        shapes = [tuple(tensors[name].shape) if name in tensors else "none" for tensors in (expected, weights)]
        if shapes[0] != shapes[1]:
            raise TrainingError(f"init {path}: expected {name} {shapes[0]}, found {shapes[1]}")
    model.load_state_dict(weights)


def tests_once(dataset: Dataset, options: TrainingOptions) -> bool:
    """Whether the test part is used only at the end: the images that judge a network must not choose its epoch."""
    return dataset.pictures is not None and not options.hold_out


def batches_of(order: Tensor, batch_size: int) -> list[Tensor]:
    """Splits indices (n,) into batches. Drops a last batch of one image: it has no variance for BatchNorm."""
    return [batch for batch in order.split(batch_size) if len(batch) >= 2]


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether memory ran out: the CPU's allocator raises a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def stamp(path: Path) -> tuple[int, int] | None:
    """Inode and time of the last change, in ns: every file has its own. None without a file."""
    with suppress(FileNotFoundError):
        about = path.stat()
        return about.st_ino, about.st_mtime_ns
    return None


def snapshot(state: State) -> State:
    """A copy that later epochs do not change. They replace `best`, and change neither `teacher` nor finished epochs."""
    shared = {id(part): part for part in (state.best, state.teacher)}
    return copy.deepcopy(state, {**shared, id(state.series): [*state.series]})


def write(state: State, output: Path, config: ModelConfig, dataset: Dataset, metrics: Metrics) -> None:
    """Writes the checkpoint, its series (.json) and the state to resume (.resume.pt).

    Raises TrainingError if the checkpoint has been replaced since the last epoch, as by another training.
    """
    if stamp(output) not in (None, state.stamp):
        raise TrainingError(
            f"{output}: expected this training's last epoch, found another file; each needs its own --output"
        )
    epochs = [asdict(epoch) for epoch in state.series]
    resumable = {
        "run": state.key,
        "images": len(dataset.train_labels),
        "pictures": dataset.pictures,
        "best": None if state.best is None else state.best.state_dict(),
        "best_epoch": state.best_epoch,
        **{name: part.state_dict() if part else None for name, part in state.parts.items()},
        "order": state.order.get_state(),
        "random": state.random,
        "series": epochs,
    }
    buffer = io.BytesIO()
    torch.save(resumable, buffer)
    if len(epochs) == 1:  # the state of a run that is replaced would resume that run
        output.with_suffix(RESUME).unlink(missing_ok=True)
    try:
        checkpoint.save(output, state.kept, config, metrics)
    finally:  # after Ctrl-C the caller may write again
        state.stamp = stamp(output)
    series = metrics | {"config": asdict(config), "series": epochs}
    write_atomically(output.with_suffix(".json"), json.dumps(series, indent=2).encode())
    write_atomically(output.with_suffix(RESUME), buffer.getvalue())


def metrics_of(state: State, dataset: Dataset, options: TrainingOptions) -> Metrics:
    """The checkpoint's metrics. With held-out images or a folder, only the last epoch uses the test images."""
    last, kept = state.series[-1], state.series[state.kept_epoch - 1]
    metrics: Metrics = {
        "dataset": dataset.name,
        "epochs": last.epoch,
        "command": typed_command(),
        "options": asdict(options),
        "kept_epoch": kept.epoch,
        "last_batch": len(batches_of(torch.arange(state.images), options.batch_size)[-1]),
        "test_images": len(dataset.test_labels),
        **({"data_dir": dataset.folder} if dataset.folder else {}),
        **({"pictures": dataset.pictures} if dataset.pictures else {}),
    }
    if options.hold_out:
        metrics["held_out_accuracy"] = kept.test_accuracy
    elif not tests_once(dataset, options):
        return metrics | {"test_accuracy": last.test_accuracy}
    if last.epoch == options.epochs:
        test = on_device(dataset.test_images, dataset.test_labels, options.device)
        metrics["test_accuracy"] = measure_accuracy(state.kept, *test)
        if options.hold_out >= FEWEST:
            metrics |= measure_calibration(state.kept, dataset, options.hold_out)
    return metrics


def restore(state: State, path: Path, dataset: Dataset, device: str) -> None:
    """Sets `state` to that of an earlier run. Raises TrainingError for a damaged file or another run."""
    if not path.is_file():
        raise TrainingError(f"{path}: expected the state of an earlier run to resume, found no such file")
    try:
        saved = torch.load(path, map_location=device, weights_only=True)
        found = saved["run"]
    except Exception as error:  # damaged bytes, and other objects, raise any exception
        reason = unpickling_reason(error)
        raise TrainingError(f"{path}: expected the state of an earlier run, found {reason}") from error
    if found != state.key:
        ours, theirs = _lacking(state.key, str(found)), _lacking(str(found), state.key)
        raise TrainingError(f"{path}: expected a run of {ours}, found {theirs}")
    if missing := {*state.parts, "order", "random", "series"} - saved.keys():
        raise TrainingError(f"{path}: expected the state of an earlier run, found no {min(missing)!r} in it")
    images = len(dataset.train_labels)
    if saved.get("images", images) != images:
        raise TrainingError(f"{path}: expected a run of {images} training images, found {saved['images']}")
    if saved.get("pictures") != dataset.pictures:
        raise TrainingError(f"{path}: expected a run of the pictures in {dataset.name}, found other pictures")
    for name, part in state.parts.items():
        if part:
            part.load_state_dict(saved[name])
    state.order.set_state(saved["order"].cpu())
    state.random = saved["random"].cpu()
    if saved.get("best") is not None:
        state.best, state.best_epoch = copy.deepcopy(state.latest), saved["best_epoch"]
        state.best.load_state_dict(saved["best"])
    state.series.extend(Epoch(**epoch) for epoch in saved["series"])


def _lacking(key: str, other: str) -> str:
    """The parts of a run's key that another key lacks, as words for an error."""
    parts = _parts(other)
    return ", ".join(part for part in _parts(key) if part not in parts) or "none of it"


def _parts(key: str) -> list[str]:
    return [part.strip("{}") for part in re.split(r", |} on ", key)]


def run_key(config: ModelConfig, dataset: Dataset, options: TrainingOptions) -> str:
    """What must agree to resume: all but the device and, if no step depends on them, the number of epochs.

    A folder may lie elsewhere: its pictures are known by content.
    """
    same = asdict(options)
    del same["device"]
    if not depends_on_epochs(config, options):
        del same["epochs"]
    read = f"{'pictures' if dataset.pictures else dataset.name} {dataset.load_options}".rstrip()
    return f"{config.to_json()} on {read}, {json.dumps(same)}"
