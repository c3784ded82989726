"""Default options for training on a user's folder; they depend on the number and size of the pictures.

In: a dataset, and the options that the user gave. Out: values of the other options, with the reason. docs/results.md
shows the accuracy that they reach.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from models.networks.config import CNN_MIN_SIDE, ModelConfig

if TYPE_CHECKING:
    from models.data import Dataset

FEW = 2000  # pictures to train on
FEWEST = 200  # pictures to train on: fewer do not show the shades of their classes
FEWEST_RECOLOURED = 40  # pictures: what fewer show is chance
CNN_MAX_SIDE = 64  # pixels: its work grows with the area
CNN_MAX_PIXELS = 16_000_000  # of all pictures: about 20,000 of 28x28, 4,000 of 64x64
BATCH = {True: 24, False: 64}  # images, by whether the pictures are few
SEEN = 48_000  # pictures that a transformer sees, with repeats; it must learn which patches are neighbours
CNN_SEEN = (32_000, 96_000)  # pictures that the CNN sees: at least, of large pictures, and at most, of small pictures
CNN_SEEN_PIXELS = 96_000 * 28 * 28  # pixels that the CNN sees, between these bounds
EPOCHS = {"cnn": (20, 1000), "transformer": (20, 300)}  # least and most
MIXES = {"mixup": 0.4, "cutmix": 0.5}
PLAIN = {"augment": "none", "mixup": 0.0, "cutmix": 0.0}
USUAL = "as usual"
OF_TRANSFORMERS = {option.name for option in fields(ModelConfig)} - {"model"}
AVERAGED = 10  # the moving average spans the last tenth of the steps


def usual(data: Dataset, given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Values of the options that are not `given`, and why. Empty for datasets with a name.

    Raises DataError for a transformer's pictures of a size that no usual patch divides.
    """
    if data.pictures is None:
        return {}, ""
    count = len(data.train_labels)
    few = count < FEW
    model = given.get("model") or ("cnn" if _suits_cnn(data, given) else "vitbn")
    kind = "cnn" if model in ("cnn", "dnn", "dnnbn") else "transformer"
    if kind == "transformer" and "patch_size" not in given:
        from models.data.folder import check_patches

        check_patches((data.train_images.shape[2], data.train_images.shape[3]))
    least, most = EPOCHS[kind]
    batch = min(given.get("batch_size") or _even(count, BATCH[few]), max(2, count))
    epochs = given.get("epochs") or max(least, min(most, _seen(kind, data) // count))
    values: dict[str, Any] = {
        "model": model,
        **({"depth": 2 if few else 4, "patch_size": data.patch_size} if kind == "transformer" else {}),
        "batch_size": batch,
        "epochs": epochs,
        "lr": 0.003,
        "schedule": "one-cycle",
        "weight_decay": 0.05,
        "augment": "turn-shade" if kind == "cnn" and count < FEWEST else "turn",
        **(MIXES if kind == "cnn" else {}),
    }
    if given.get("schedule") != "constant":  # a constant run may get more epochs, to which the decay would not fit
        values["ema"] = round(max(0.0, min(0.999, 1 - AVERAGED / (epochs * -(-count // batch)))), 3)
    return {name: value for name, value in values.items() if name not in given}, _reason(values, few)


def _suits_cnn(data: Dataset, given: Mapping[str, Any]) -> bool:
    """Whether the CNN reads pictures of this size in bounded time, and no option of transformers is given."""
    count, _, *sides = data.train_images.shape
    fits = min(sides) >= CNN_MIN_SIDE and max(sides) <= CNN_MAX_SIDE and count * math.prod(sides) <= CNN_MAX_PIXELS
    return fits and not OF_TRANSFORMERS & given.keys()


def ways(data: Dataset, given: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The usual values, as `chosen` by `usual`, and alternatives that a trial compares with them. A key names the way.

    - Recoloured pictures, where colours do not tell the classes apart: forms may.
    - Where the usual distortions and mixed pairs seem to hide the classes: rolled pictures for the CNN (they show the
      strength of noise, wherever it is), pictures in their own shades, undistorted pictures, and a dense network on
      undistorted pictures.
    """
    changes: dict[str, dict[str, Any]] = {}
    if "augment" in chosen:
        from models.training.augmentation_check import hide_classes
        from models.training.colour_cue import tell_classes

        images, labels = data.train_images, data.train_labels
        has_colours = images.shape[1] == 3 and len(labels) >= FEWEST_RECOLOURED
        if has_colours and not tell_classes(images, labels):
            changes["with other colours"] = {"augment": "turn-colour"}
        if hide_classes(images, labels, chosen["augment"], {**given, **chosen}.get("mixup") or 0.0):
            if {**given, **chosen}["model"] == "cnn":
                changes["rolled"] = PLAIN | {"augment": "roll"}
            if chosen["augment"] == "turn-shade":
                changes["in their own shades"] = {"augment": "turn"}
            if "model" in chosen and not OF_TRANSFORMERS & given.keys():
                changes["undistorted by a dense network"] = {"model": "dnnbn"} | PLAIN
            changes["undistorted"] = PLAIN
    return {USUAL: dict(chosen)} | {way: _changed(data, given, change) for way, change in changes.items()}


def _changed(data: Dataset, given: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an alternative: its `change`, but for options that the user gave, and the usual rest."""
    values = {name: value for name, value in change.items() if name not in given}
    return values | usual(data, {**given, **values})[0]


def _even(count: int, near: int) -> int:
    """The batch size within a quarter of `near` whose last batch lacks the fewest pictures.

    BatchNorm learns noise from a small last batch: where an epoch has only two batches, it cost ten points of accuracy.
    """
    sizes = range(near - near // 4, near + near // 4 + 1)
    return min(sizes, key=lambda size: (-count % size, abs(size - near)))


def _seen(kind: str, data: Dataset) -> int:
    """Pictures that a training sees, with repeats."""
    if kind == "transformer":
        return SEEN
    least, most = CNN_SEEN
    return max(least, min(most, CNN_SEEN_PIXELS // math.prod(data.train_images.shape[2:])))


def _reason(values: Mapping[str, Any], few: bool) -> str:
    if values["model"] == "cnn":
        more = "distortions, mixed pairs and averaged weights make them more"
        return f"such pictures teach convolutions more than attention, so no transformer (--model vitbn is one); {more}"
    size = "few pictures need small batches and a shallow network" if few else "many pictures carry a deeper network"
    return f"{size}; the rate falls to 0, so the last epochs are the best"
