"""Takes timm's ViT for garments from training to the published file: with its LayerNorms, and with BatchNorm instead.

In: Fashion-MNIST and the packages of the extra `foreign`. Out: for both norms accuracy, agreement with timm, and
interleaved times of timm in PyTorch, of its ONNX export, and of the file that `vitbn repository publish --pictures`
makes of the export. The folder `--work` keeps the state after each epoch, so an interrupted run continues.

python benchmarks/studies/timm_garments.py --work garments --epochs 3
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray

import vitbn_packages  # noqa: F401  # reports another `models` that hides ours
from benchmarks.measure.measured_network import SCORED_BATCH
from benchmarks.measure.options import json_option, seconds_option
from benchmarks.measure.result_file import PROGRAM
from common.given_path import GivenPath

if TYPE_CHECKING:
    from export.compare_logits import Classifier, Images
    from models.data import Dataset

NETWORK, SIDE, PATCH = "vit_tiny_patch16_224", 28, 4
MEAN, STD = 0.286, 0.353  # of Fashion-MNIST's training images
NORMS = ("LayerNorm", "BatchNorm")
BATCH, RATE, DECAY = 64, 1e-3, 0.05  # images of a training step, learning rate, weight decay
TIMED_BATCHES = (1, 8)
TIMM, EXPORTED, PUBLISHED = "timm, PyTorch", "its export, ONNX Runtime", "published"


@click.command()
@click.option("--work", type=GivenPath(file_okay=False, path_type=Path), required=True, help="Keeps each epoch.")
@click.option("--norm", "norms", type=click.Choice(NORMS), multiple=True, default=NORMS, show_default=True)
@click.option("--epochs", type=click.IntRange(1), default=3, show_default=True)
@click.option("--images", type=click.IntRange(BATCH, 60_000), default=60_000, show_default=True, help="To train on.")
@click.option("--test-images", type=click.IntRange(1, 10_000), default=10_000, show_default=True)
@click.option("--depth", type=click.IntRange(1), default=12, show_default=True, help="Blocks.")
@seconds_option(20, "Of timing, for each norm and batch.")
@json_option
def timm_garments(
    work: Path,
    norms: tuple[str, ...],
    epochs: int,
    images: int,
    test_images: int,
    depth: int,
    seconds: float,
    json_path: Path | None,
) -> None:
    """Train timm's ViT on garments with both norms, publish it, and compare what the clients get with timm."""
    from benchmarks.measure.result_file import recording
    from models.data import load_dataset

    click.get_current_context().meta[PROGRAM] = "python benchmarks/studies/timm_garments.py"
    data = load_dataset("fashion-mnist").first(images, test_images)
    work.mkdir(parents=True, exist_ok=True)
    with recording(json_path, 1) as record:
        for norm in norms:
            model = train(norm, data, epochs, depth, work / f"{norm}.pt")
            training = {"network": NETWORK, "norm": norm, "depth": depth, "images": images, "epochs": epochs}
            for row in measure(model, data, work / norm, seconds):
                record.add({**training, **row})
                click.echo("  ".join(f"{name} {value}" for name, value in row.items() if name != "samples_ns"))


def network(norm: str, depth: int) -> Any:
    """timm's network for one channel of 28 x 28 pixels."""
    from benchmarks.measure.foreign_networks import timm_network, token_batch_norm

    sizes = {"img_size": SIDE, "patch_size": PATCH, "in_chans": 1, "num_classes": 10, "depth": depth}
    return timm_network(NETWORK, **sizes, **({"norm_layer": token_batch_norm} if norm == "BatchNorm" else {}))()


def train(norm: str, data: Dataset, epochs: int, depth: int, state_file: Path) -> Any:
    """The trained network. `state_file` keeps the state after the last epoch, from which an interrupted run continues.

    Raises ClickException if the file is of another training.
    """
    import torch

    torch.manual_seed(0)
    model = network(norm, depth)
    optimiser = torch.optim.AdamW(model.parameters(), RATE, weight_decay=DECAY)
    batches = len(data.train_labels) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, epochs * batches)
    parts = {"model": model, "optimiser": optimiser, "schedule": schedule}
    first_epoch, training = 0, {"images": len(data.train_labels), "epochs": epochs, "depth": depth}
    if state_file.exists():
        states = torch.load(state_file, weights_only=True)
        first_epoch, found = states.pop("done"), states.pop("of")
        if found != training:
            raise click.ClickException(
                f"{state_file}: expected a training of {training}, found {found}; --work takes a new folder"
            )
        for name, state in states.items():
            parts[name].load_state_dict(state)
    for epoch in range(first_epoch, epochs):
        loss = _train_epoch(model, optimiser, schedule, data, epoch)
        click.echo(f"{norm}, epoch {epoch + 1} of {epochs}: loss {loss:.3f}", err=True)
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**states, "done": epoch + 1, "of": training}, state_file)
    return model.eval()


def _train_epoch(model: Any, optimiser: Any, schedule: Any, data: Dataset, epoch: int) -> float:
    """Trains on each image once, half of the images mirrored. Returns the mean loss."""
    import torch

    model.train()
    rng, losses = np.random.default_rng(epoch), []
    order = rng.permutation(len(data.train_labels))
    for start in range(0, len(order) - BATCH + 1, BATCH):
        indices = order[start : start + BATCH]
        images = data.train_images[indices]
        mirrored = np.where(rng.random(BATCH).reshape(-1, 1, 1, 1) < 0.5, images[..., ::-1], images)
        loss = torch.nn.functional.cross_entropy(
            model(torch.from_numpy(normalised(mirrored))), torch.from_numpy(data.train_labels[indices])
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
    return float(np.mean(losses))


def normalised(images: Images) -> NDArray[np.float32]:
    """The network's input: pixels in [0, 1] minus MEAN, over STD."""
    return np.asarray((images / np.float32(255) - np.float32(MEAN)) / np.float32(STD), np.float32)


def export(model: Any, folder: Path) -> Path:
    """Writes the network as an ONNX file in `folder`: `pixels` float32 (batch, 1, 28, 28) -> `y` (batch, 10)."""
    import torch

    from benchmarks.measure.foreign_networks import exported

    folder.mkdir(parents=True, exist_ok=True)
    return exported(model, (torch.randn(2, 1, SIDE, SIDE),), ["pixels"], {0: "batch"}, folder / "plain.onnx")


def publish(file: Path, labels: tuple[str, ...], repository: Path) -> Path:
    """Does the work of `vitbn repository publish FILE --pictures --mean 0.286 --std 0.353 --labels labels.txt`.

    Returns the model's folder.
    """
    from export.pictures.picture_artifact import make_picture_artifact
    from export.pictures.processor import from_options
    from export.publishing.publish import publish as publish_artifact

    processor = from_options((MEAN,), (STD,), 1.0, "bicubic", (SIDE, SIDE))
    artifact = make_picture_artifact(file, lambda interface: processor, labels).artifact
    return publish_artifact(repository, "garments", artifact).parent


def measure(model: Any, data: Dataset, folder: Path, seconds: float) -> Iterator[Mapping[str, Any]]:
    """A row for each batch and form of the network: quality, times, and speed relative to the export."""
    from benchmarks.measure.interleaved_timing import ratio_with_interval, time_interleaved
    from export.compare_logits import in_parts

    file = export(model, folder)
    candidates = classifiers(model, file, publish(file, data.labels, folder / "repository"))
    scores = {name: in_parts(classify, SCORED_BATCH)(data.test_images) for name, classify in candidates.items()}
    quality = {name: _quality(answers, scores[TIMM], data.test_labels) for name, answers in scores.items()}
    for batch in TIMED_BATCHES:
        calls = {name: partial(classify, data.test_images[:batch]) for name, classify in candidates.items()}
        measured = time_interleaved(calls, seconds, f"batch {batch}")
        for name, durations in measured.items():
            ratio = vars(ratio_with_interval(measured[EXPORTED], durations))
            yield {"candidate": name, "batch": batch, **quality[name], **durations.row(), "times_as_fast": ratio}


def classifiers(model: Any, file: Path, published: Path) -> dict[str, Classifier]:
    """Form of the network -> its function from images (n, 1, 28, 28) to scores (n, 10), on one thread.

    `file`: the export; `published`: the model's folder. The published file gets the images as clients prepare them.
    """
    import torch
    from PIL import Image

    from clients.bulk.network import find_model
    from clients.model_description import describe
    from export.compiler.proof.runner import Runner

    torch.set_num_threads(1)
    plain, served = Runner(file, packed=True), Runner(Path(find_model(published).path), packed=True)
    description = describe(served.session.get_modelmeta().custom_metadata_map)

    def prepared(image: Images) -> Images:
        return description.prepare(Image.fromarray(image)).image

    def by_timm(images: Images) -> NDArray[np.float32]:
        with torch.inference_mode():
            scores: NDArray[np.float32] = model(torch.from_numpy(normalised(images))).numpy()
        return scores

    def by_export(images: Images) -> NDArray[np.float32]:
        return np.asarray(plain({"pixels": normalised(images)})["y"], np.float32)

    def as_published(images: Images) -> NDArray[np.float32]:
        return np.asarray(served({"image": np.stack([prepared(image[0]) for image in images])})["logits"], np.float32)

    return {TIMM: by_timm, EXPORTED: by_export, PUBLISHED: as_published}


def _quality(scores: NDArray[np.float32], expected: NDArray[np.float32], labels: NDArray[np.int64]) -> dict[str, float]:
    """Accuracy, the share of images with the expected class, and the largest error of a score."""
    return {
        "accuracy": float((scores.argmax(1) == labels).mean()),
        "agreement": float((scores.argmax(1) == expected.argmax(1)).mean()),
        "max_abs_error": float(np.abs(scores - expected).max()),
    }


if __name__ == "__main__":
    timm_garments()
