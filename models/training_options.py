from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from models.config import Augmentation, ModelConfig
from models.data import Dataset

# Fields of ModelConfig with options in train.py, besides model and depth.
ARCHITECTURE = (
    *("dim", "heads", "dim_head", "mlp_dim", "class_attention"),
    *("patch_size", "pool", "pos_emb", "dropout", "emb_dropout", "qkv_bias", "standardise"),
)


class TrainingError(Exception):
    pass


class Diverged(TrainingError):
    """Loss or logits are no longer finite; the last good checkpoint stays."""


@dataclass(frozen=True)
class TrainingOptions:
    """AdamW (Loshchilov and Hutter, 2019) on the cross-entropy; other fields: `models/train.py --help`.

    - `schedule`: `one-cycle` (Smith and Topin, 2019) warms up to `lr` and anneals to nearly 0.
    - `drawn`: digits of our own drawing beside the training images (`models/data/drawn.py`).
    - `init`: a checkpoint of the same sizes whose weights the training starts from.
    - `teacher`: its probabilities are half of the target (Hinton et al., 2015; Touvron et al., DeiT, 2021).
    - `accumulate`: parts of a batch: same gradient, less memory, but BatchNorm normalises each by itself.
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
    augment_test: bool = False
    hold_out: int = 0
    drawn: int = 0
    init: str | None = None
    teacher: str | None = None
    teacher_cache: str | None = None
    accumulate: int = 1
    last_block: Literal["all", "row"] = "row"
    ema: float | None = None
    skip_init: float = 0.0


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


def command_line(config: ModelConfig, dataset: Dataset, options: TrainingOptions) -> str:
    words = ["python models/train.py", f"--model {config.model}", f"--dataset {shlex.quote(dataset.name)}"]
    words += [dataset.reading] if dataset.reading else []
    usual = dataset.model_config(config.model, config.depth)
    values = {"depth": config.depth}
    values |= {name: value for name in ARCHITECTURE if (value := getattr(config, name)) != getattr(usual, name)}
    for field in fields(options):
        if (value := getattr(options, field.name)) != field.default and field.name != "device":
            values[field.name] = value
    return " ".join([*words, *(_option(name, value) for name, value in values.items())])


def _option(name: str, value: object) -> str:
    option = f"--{name.replace('_', '-')}"
    if value is True:
        return option
    return shlex.join([option, *(map(str, value) if isinstance(value, tuple) else [str(value)])])
