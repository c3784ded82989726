"""Digits as other pens, scanners and cameras show them, and rows of what networks answer to them.

In and out: images uint8 (n, 1, 28, 28), 255 = ink. `thinned` erodes by 3x3 pixels, `blurred` applies a Gaussian filter
of 1.2 pixels, `dimmed` halves the contrast, `noisy` adds Gaussian noise with a standard deviation of 0.2 of full ink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from benchmarks.measure.measured_network import Network, rewritten_classifier
from benchmarks.measure.progress import note
from models.data import Dataset
from models.data.digits import load_digits

if TYPE_CHECKING:
    from export.compare_logits import Classifier
    from models.checkpoints.checkpoint import Checkpoint

Pictures = NDArray[np.uint8]

BLUR = 1.2  # pixels
DIM = 0.5
NOISE = 0.2  # of full ink
UNLABELLED = 200  # 8x8 digits to adapt a network to; the other 8x8 digits measure the adapted network
SMALL = "8x8 digits"


def thinned(images: Pictures) -> Pictures:
    eroded: Pictures = ndimage.grey_erosion(images, (1, 1, 3, 3))
    return eroded


def blurred(images: Pictures) -> Pictures:
    return _as_bytes(ndimage.gaussian_filter(images.astype(np.float32), (0, 0, BLUR, BLUR)))


def dimmed(images: Pictures) -> Pictures:
    return _as_bytes(images * np.float32(DIM))


def noisy(images: Pictures) -> Pictures:
    """The same noise at every call."""
    return _as_bytes(images + np.random.default_rng(0).normal(0, 255 * NOISE, images.shape))


PENS: dict[str, Callable[[Pictures], Pictures]] = {
    "thinned 3x3": thinned,
    "blurred, sigma 1.2": blurred,
    "contrast halved": dimmed,
    "noise 0.2": noisy,
}


def conditions(data: Dataset) -> dict[str, tuple[Pictures, NDArray[np.int64]]]:
    """Name of a condition -> images and labels (n,). SMALL: scikit-learn's digits; the others: the test images."""
    digits = load_digits()
    images = np.concatenate((digits.train_images, digits.test_images))
    small = images, np.concatenate((digits.train_labels, digits.test_labels))
    changed = {name: (change(data.test_images), data.test_labels) for name, change in PENS.items()}
    return {data.name: (data.test_images, data.test_labels), SMALL: small} | changed


def rows_by_condition(networks: Sequence[Network], data: Dataset) -> Iterator[dict[str, Any]]:
    """A row for each network and kind of distortion, and for the network adapted to unlabelled 8x8 digits."""
    from models.checkpoints.checkpoint import load

    labelled = conditions(data)
    for network in networks:
        note(f"Measuring {network.name}")
        checkpoint = load(network.path)
        rewritten = rewritten_classifier(checkpoint.path)
        cases = {name: (rewritten, images, labels) for name, (images, labels) in labelled.items()}
        images, labels = labelled[SMALL]
        if adapted := _adapted(checkpoint, images[:UNLABELLED]):
            cases[f"{SMALL}, adapted"] = adapted, images[UNLABELLED:], labels[UNLABELLED:]
        for name, (classify, images, labels) in cases.items():
            accuracy = float((classify(images).argmax(1) == labels).mean())
            row = {"model": network.name, "condition": name, "accuracy": accuracy}
            yield {"dataset": data.name, "images": len(labels), **row}


def _adapted(checkpoint: Checkpoint, images: Pictures) -> Classifier | None:
    """The network after `vitbn adapt` with `images`; None for a network without BatchNorm."""
    import torch

    from models.checkpoints.checkpoint import save
    from models.training.batch_norm_adaptation import AdaptationError, adapt, last_block_of_training

    try:
        network = adapt(checkpoint.model, torch.from_numpy(images), last_block_of_training(checkpoint.metrics))
    except AdaptationError:
        return None
    with TemporaryDirectory() as folder:
        save(path := Path(folder) / "adapted.safetensors", network, checkpoint.config, {})
        return rewritten_classifier(path)


def _as_bytes(levels: NDArray[np.float32] | NDArray[np.float64]) -> Pictures:
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8)
