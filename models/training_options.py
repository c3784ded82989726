"""How a network is trained: one frozen dataclass, from which the options of `models/train.py` are made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

import click

from models.config import AUGMENTATIONS, Augmentation, ModelConfig

Command = TypeVar("Command", bound=Callable[..., Any])

SHARE = click.FloatRange(0, 1, max_open=True)
PATH = click.Path(path_type=str)
HOLD_OUT_HELP = "Training images to test on; of a folder, its test images: a fifth if 0."
LAST_BLOCK_HELP = "row: computes only the row that the head reads, with the last block's statistics from CLS rows."


class TrainingError(Exception):
    pass


class Diverged(TrainingError):
    """Loss or logits are no longer finite; the last good checkpoint stays."""


def finite(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"expected a finite number, found {value}")
    return value


def _option(default: object, kind: click.ParamType[Any] | None = None, help: str | None = None, **more: Any) -> Any:
    """A field; without `kind` a flag."""
    shown = default is not None and default is not False
    flag: dict[str, Any] = {"is_flag": True} if kind is None else {"type": kind}
    if isinstance(kind, click.FloatRange) or kind is click.FLOAT:
        flag["callback"] = finite
    about = {"default": default, "show_default": shown, "help": help, **flag, **more}
    return field(default=default, metadata=about)


@dataclass(frozen=True)
class TrainingOptions:
    """AdamW (Loshchilov and Hutter, 2019) on the cross-entropy.

    - `schedule`: `one-cycle` (Smith and Topin, 2019) warms up to `lr` and anneals to nearly 0.
    - `drawn`: digits of our own drawing beside the training images (`models/data/drawn.py`).
    - `init`: a checkpoint of the same sizes whose weights the training starts from.
    - `teacher`: its probabilities are half of the target (Hinton et al., 2015; Touvron et al., DeiT, 2021).
    - `accumulate`: parts of a batch: same gradient, less memory, but BatchNorm normalises each by itself.
    - `device`: as `choose_device` returns it, before a training starts.
    """

    epochs: int = _option(10, click.IntRange(1))
    batch_size: int = _option(100, click.IntRange(2))
    lr: float = _option(0.001, click.FloatRange(0, 10, min_open=True))
    schedule: Literal["constant", "one-cycle"] = _option("constant", click.Choice(["constant", "one-cycle"]))
    weight_decay: float = _option(0.0, click.FloatRange(0, 1), "Weight decay of AdamW.")
    label_smoothing: float = _option(0.0, SHARE)
    accumulate: int = _option(1, click.IntRange(1), "Process each batch in this many parts.")
    clip: float | None = _option(None, click.FloatRange(0, min_open=True), "Largest norm of the gradient.")
    precision: Literal["fp32", "bf16"] = _option("fp32", click.Choice(["fp32", "bf16"]))
    augment: Augmentation = _option("none", click.Choice(AUGMENTATIONS))  # noqa: RUF009  # a field
    augment_test: bool = _option(False, help="Distort the test images too, as the study did.")
    hold_out: int = _option(0, click.IntRange(0), HOLD_OUT_HELP)
    drawn: int = _option(0, click.IntRange(0), "Train on this many digits of our own drawing too.")
    init: str | None = _option(None, PATH, "Checkpoint whose weights to start from.")
    teacher: str | None = _option(None, PATH, "Checkpoint of a network to distil from.")
    teacher_cache: str | None = _option(
        None, PATH, "Keep each epoch's images and the teacher's answers here for further trainings.", metavar="FOLDER"
    )
    last_block: Literal["all", "row"] = _option("row", click.Choice(["row", "all"]), LAST_BLOCK_HELP)
    ema: float | None = _option(None, SHARE, "Decay of a moving average of the weights, which is kept instead.")
    skip_init: float = _option(0.0, click.FLOAT, "RepBN's factor; theirs is 1.")
    seed: int = _option(0, click.IntRange(0, 2**63 - 1))
    device: str = _option("auto", click.Choice(["auto", "cpu", "cuda", "mps"]))


def training_options(command: Command) -> Command:
    """Gives a command an option for each field."""
    for each in reversed(fields(TrainingOptions)):
        command = click.option(f"--{each.name.replace('_', '-')}", **each.metadata)(command)
    return command


@dataclass(frozen=True)
class Epoch:
    """Mean training loss; accuracy in [0, 1]. `test_` and `class_accuracy` come from held-out images, if there are any.

    A class without images has None.
    """

    epoch: int
    training_time_s: float
    test_time_s: float
    training_loss: float
    test_accuracy: float
    class_accuracy: Sequence[float | None] = ()


def depends_on_epochs(config: ModelConfig, options: TrainingOptions) -> bool:
    """If so, a run cannot go on to a larger number."""
    return options.schedule != "constant" or config.model == "vit-prepbn"


def choose_device(name: str) -> str:
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if not there.get(name, True):
        raise TrainingError(f"device {name}: expected it on this machine, found none")
    return next(device for device in there if there[device]) if name == "auto" else name
