"""What a training is: its options, what an epoch measured, and its errors. Imports neither click nor torch.

In: values by the names of their fields, and a dataset. Out: the configuration of the network and the options.
`models/train.py` makes the options of the command from the fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from models.networks.config import AUGMENTATIONS, Augmentation, ModelConfig

if TYPE_CHECKING:
    from models.data import Dataset

DEVICES = ("auto", "cpu", "cuda", "mps")
HOLD_OUT_HELP = "Training images kept apart: the temperature is fitted on them, and a folder's best epoch is kept."
MIXUP_HELP = "Mix pictures in pairs, their labels too, by shares from Beta(x, x); 0: do not."
CUTMIX_HELP = "In this share of the batches, paste a rectangle of another picture into each instead."
LAST_BLOCK_HELP = "row: computes only the row that the head reads, with the last block's statistics from CLS rows."


class TrainingError(Exception):
    pass


class Diverged(TrainingError):
    """Loss or logits are no longer finite; the last good checkpoint stays."""


class Numbers(NamedTuple):
    """Finite numbers from `low` to `high`; an open bound is itself excluded."""

    kind: type[int] | type[float]
    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False


SHARE = Numbers(float, 0, 1, high_open=True)


def _option(
    default: object,
    values: Numbers | tuple[str, ...] | type[bool] | type[Path],
    help: str | None = None,
    metavar: str | None = None,
) -> Any:
    """A dataclass field with the values and the help of its command-line option."""
    return field(default=default, metadata={"values": values, "help": help, "metavar": metavar})


@dataclass(frozen=True)
class TrainingOptions:
    """AdamW (Loshchilov and Hutter, 2019) on the cross-entropy.

    - `schedule`: `one-cycle` (Smith and Topin, 2019) warms up to `lr` and anneals to nearly 0.
    - `drawn`: digits of our own drawing beside the training images (`models/data/drawn_digits.py`).
    - `outliers`: drawings of none of the classes beside them (`models/data/outlier_exposure.py`).
    - `init`: a checkpoint of the same sizes whose weights the training starts from; it may have fewer blocks, two at
      least (`models/training/deepen.py`).
    - `teacher`: its probabilities are half of the target (Hinton et al., 2015; Touvron et al., DeiT, 2021).
    - `device`: as `choose_device` returns it, before a training starts.
    """

    epochs: int = _option(10, Numbers(int, 1))
    batch_size: int = _option(100, Numbers(int, 2))
    lr: float = _option(0.001, Numbers(float, 0, 10, low_open=True))
    schedule: Literal["constant", "one-cycle"] = _option("constant", ("constant", "one-cycle"))
    weight_decay: float = _option(0.0, Numbers(float, 0, 1), "Weight decay of AdamW.")
    label_smoothing: float = _option(0.0, SHARE)
    clip: float | None = _option(None, Numbers(float, 0, low_open=True), "Largest norm of the gradient.")
    precision: Literal["fp32", "bf16"] = _option("fp32", ("fp32", "bf16"))
    augment: Augmentation = _option("none", AUGMENTATIONS)  # noqa: RUF009  # a field
    mixup: float = _option(0.0, Numbers(float, 0, 100), MIXUP_HELP)
    cutmix: float = _option(0.0, Numbers(float, 0, 1), CUTMIX_HELP)
    augment_test: bool = _option(False, bool, "Distort the test images too, as the study did.")
    hold_out: int = _option(0, Numbers(int, 0), HOLD_OUT_HELP)
    drawn: int = _option(0, Numbers(int, 0), "Train on this many digits of our own drawing too.")
    outliers: int = _option(0, Numbers(int, 0), "Train on this many drawings of none of the classes too.")
    init: str | None = _option(None, Path, "Checkpoint whose weights to start from; it may have fewer blocks.")
    teacher: str | None = _option(None, Path, "Checkpoint of a network to distil from.")
    teacher_cache: str | None = _option(
        None, Path, "Keep each epoch's images and the teacher's answers here for further trainings.", "FOLDER"
    )
    last_block: Literal["all", "row"] = _option("row", ("row", "all"), LAST_BLOCK_HELP)
    ema: float | None = _option(None, SHARE, "Decay of a moving average of the weights, which is kept instead.")
    seed: int = _option(0, Numbers(int, 0, 2**63 - 1))
    device: str = _option("auto", DEVICES)


@dataclass(frozen=True)
class Epoch:
    """Mean training loss; accuracies in [0, 1], on the held-out images if there are any.

    `test_accuracy` is None for an epoch that is not judged: without held-out pictures a folder judges the last alone.
    In `class_accuracy` a class without images has None.
    """

    epoch: int
    training_time_s: float
    test_time_s: float
    training_loss: float
    test_accuracy: float | None
    class_accuracy: Sequence[float | None] = ()


def configure(data: Dataset, values: Mapping[str, Any]) -> tuple[ModelConfig, TrainingOptions]:
    """`values`: by names of fields. The dataset gives the network's values that are None or missing.

    Raises ConfigError, and TypeError for an unknown name.
    """
    names = {each.name for each in fields(ModelConfig)}
    network = {name: value for name, value in values.items() if name in names and value is not None}
    usual = data.model_config(network.pop("model"), network.pop("depth", ModelConfig.depth))
    options = TrainingOptions(**{name: value for name, value in values.items() if name not in names})
    return replace(usual, **network), options


def depends_on_epochs(config: ModelConfig, options: TrainingOptions) -> bool:
    """Whether the number of epochs changes every step: such a run cannot be resumed with more epochs."""
    return options.schedule != "constant" or config.model == "vit-prepbn"


def choose_device(name: str) -> str:
    """`auto`: CUDA, else MPS, else the CPU. Raises TrainingError if PyTorch lacks the device."""
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if not there.get(name, True):
        raise TrainingError(f"device {name}: expected it on this machine, found none")
    return next(device for device in there if there[device]) if name == "auto" else name
