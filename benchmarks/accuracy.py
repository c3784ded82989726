"""In: networks, shipped or of the user. Out: their accuracy in every runtime and precision.

Other options measure them on digits of other pens, on pictures as people bring them, or as published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from benchmarks.measure.devices import cores
from benchmarks.measure.engines import COMPARED, candidates, label_of, start
from benchmarks.measure.network import Network
from benchmarks.measure.options import (
    chosen,
    digits,
    json_option,
    models_or_own,
    own_checkpoints,
    own_options,
    several,
)
from benchmarks.measure.progress import note
from export.equivalence import in_parts
from models.catalog import OF_DIGITS, SHIPPED, shipped

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from benchmarks.measure.candidate import Candidate
    from benchmarks.measure.reference import Reference
    from export.equivalence import Classifier, Images, Logits
    from models.checkpoints.checkpoint import Checkpoint
    from models.data import Dataset

BATCH = 250
BROUGHT = 400  # digits for each condition
UNLABELLED = 200  # 8x8 digits to adapt to; the others measure the result
EXACT = ("torch", "torch-sdpa", "onnx", "onnx-folded", "onnx-optimized")  # float32; PyTorch, the reference, first
PRECISION_IN_NAMES = {"fp32": "", "fp16": ", fp16", "bf16": ", bfloat16", "int8": ", int8"}


@click.command()
@several(
    "--model",
    "models",
    SHIPPED,
    help=f"[default: {', '.join(COMPARED)}; with --conditions and --brought all of digits]",
)
@click.option("--conditions", is_flag=True, help="As served, on digits of other pens, scanners and cameras.")
@click.option("--brought", is_flag=True, help="As clients read them: digits in boxes, turned, shaded; letters, shapes.")
@own_options
@click.option(
    "--published",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="Measure this model of a repository as clients see it, such as triton_repo/vit, on --dataset; repeatable.",
)
@json_option
def accuracy(
    models: tuple[str, ...],
    conditions: bool,
    brought: bool,
    checkpoints: tuple[Path, ...],
    dataset: str | None,
    data_dir: Path | None,
    published: tuple[Path, ...],
    json_path: Path | None,
) -> None:
    """Measure networks, shipped or yours, in every runtime and precision that this machine has."""
    if published:
        _check_alone(dataset, models or checkpoints or conditions or brought)
    from benchmarks.measure.published_accuracy import published_row
    from benchmarks.measure.run import recording
    from benchmarks.reporting.tables import show

    if conditions and brought:
        raise click.UsageError("expected --conditions or --brought, found both")
    if published and dataset:
        with recording(json_path, 1) as record:
            for folder in published:
                record.add(row := published_row(folder, dataset, data_dir))
                click.echo(_calibrated(row))
        return
    own = own_checkpoints(checkpoints, dataset, data_dir)
    names = models_or_own(chosen(models, SHIPPED) or (OF_DIGITS if conditions or brought else COMPARED), own)
    networks = [*(Network(name, shipped(name), True, dataset, data_dir) for name in names), *own]
    measured = _on_conditions if conditions else _on_brought if brought else None
    with recording(json_path, cores()) as record:
        for row in measured(networks, digits(dataset or "mnist", data_dir)) if measured else _on_data(networks):
            record.add(row)
    click.echo(show(record.run(), "conditions" if conditions else "brought" if brought else "accuracy"))


def _check_alone(dataset: str | None, others: object) -> None:
    if others:
        raise click.UsageError("expected --published alone, found --model, --checkpoint, --conditions or --brought")
    if dataset is None:
        raise click.UsageError("expected --dataset, a name or a folder of pictures by class, with --published")


def _calibrated(row: dict[str, Any]) -> str:
    right = f"{row['model']}: {100 * row['accuracy']:.2f} % of {row['images']} pictures right"
    if row["part"] == "all":
        right += " (all of the folder, also what a training of the model saw)"
    if "temperature" not in row:
        return right
    before, after = 100 * row["calibration_error_before"], 100 * row["calibration_error"]
    fits = f"temperature {row['temperature']:g} fits: calibration error {before:.1f} -> {after:.1f} %"
    return f"{right}; {fits} on the half that did not fit it"


def _on_data(networks: Sequence[Network]) -> Iterator[dict[str, Any]]:
    from benchmarks.measure.reference import reference

    for network in networks:
        of = reference(network)  # exports the network once for all runtimes
        for row in _in_runtimes(of):
            yield {"dataset": of.data.name, "images": len(of.data.test_labels), **row}


def _on_conditions(networks: Sequence[Network], data: Dataset) -> Iterator[dict[str, Any]]:
    from benchmarks.measure.distorted_digits import SMALL, conditions
    from models.checkpoints.checkpoint import load

    _check_digits("--conditions", networks, data)
    pictures = conditions(data)
    for network in networks:
        note(f"Measuring {network.name}")
        source = load(network.path)
        plain = _served(source.path)
        asked = {name: (plain, *of) for name, of in pictures.items()}
        images, labels = pictures[SMALL]
        if adapted := _adapted(source, images[:UNLABELLED]):
            asked[f"{SMALL}, adapted"] = adapted, images[UNLABELLED:], labels[UNLABELLED:]
        for name, (classify, images, labels) in asked.items():
            right = float((in_parts(classify, BATCH)(images).argmax(1) == labels).mean())
            row = {"model": network.name, "condition": name, "accuracy": right}
            yield {"dataset": data.name, "images": len(labels), **row}


def _check_digits(option: str, networks: Sequence[Network], data: Dataset) -> None:
    for network in networks:
        if (network.config.input_shape, network.config.labels) != (data.test_images.shape[1:], data.labels):
            raise click.UsageError(f"{option}: expected networks that read digits, found {network.name}")


def _on_brought(networks: Sequence[Network], data: Dataset) -> Iterator[dict[str, Any]]:
    """Rows with shares of all pictures; a picture without ink counts as rejected."""
    import numpy as np

    from benchmarks.measure.difficult_pictures import DIGITS, NOT_DIGITS, pictures
    from common.evidence import evidence
    from models.checkpoints.checkpoint import load

    _check_digits("--brought", networks, data)
    chosen = np.linspace(0, len(data.test_labels) - 1, min(BROUGHT, len(data.test_labels))).astype(int)
    images, labels = data.test_images[chosen, 0], data.test_labels[chosen]
    seen = {name: (*_read(pictures(name, images)), labels) for name in DIGITS}
    seen |= {name: (*_read(draw()), None) for name, draw in NOT_DIGITS.items()}
    for network in networks:
        note(f"Measuring {network.name}")
        least = load(network.path).metrics.get("evidence_limit", -np.inf)
        classify = _served(network.path)
        for name, (inputs, has_ink, truths) in seen.items():
            logits = in_parts(classify, BATCH)(inputs)
            rejected = (evidence(logits) < least) | ~has_ink
            row = {"model": network.name, "condition": name, "rejected": float(rejected.mean())}
            if truths is not None:
                right = (logits.argmax(1) == truths) & has_ink
                row |= {"accuracy": float(right.mean()), "right": float((right & ~rejected).mean())}
            yield {"dataset": data.name, "images": len(inputs), **row}


def _read(pictures: Iterable[Image.Image]) -> tuple[Images, NDArray[np.bool_]]:
    """Reads pictures as clients do: inputs uint8 (n, 1, 28, 28), and whether each has ink, bool (n,)."""
    import numpy as np

    from clients.preprocess import InvalidImage, to_model_input

    inputs = []
    for picture in pictures:
        try:
            inputs.append(to_model_input(picture))
        except InvalidImage:
            inputs.append(np.zeros((1, 28, 28), np.uint8))
    images = np.stack(inputs)
    return images, images.any(axis=(1, 2, 3))


def _adapted(source: Checkpoint, images: Images) -> Classifier | None:
    """The network adapted to `images` as by `vitbn adapt`; None for a network without BatchNorm."""
    import torch

    from models.checkpoints.checkpoint import save
    from models.training.adaptation import AdaptationError, adapt, last_block_of_training

    try:
        network = adapt(source.model, torch.from_numpy(images), last_block_of_training(source.metrics))
    except AdaptationError:
        return None
    with TemporaryDirectory() as folder:
        save(path := Path(folder) / "adapted.safetensors", network, source.config, {})
        return _served(path)


def _served(path: Path) -> Classifier:
    from export.checkpoint_to_onnx import Form
    from export.checkpoint_to_version import export_checkpoint
    from export.equivalence import onnx_classifier

    return onnx_classifier(export_checkpoint(path, Form(rewrites="all")).onnx)


def _in_runtimes(of: Reference) -> Iterator[dict[str, Any]]:
    import numpy as np

    from export.errors import ExportError

    expected: Logits | None = None
    for name, candidate in _candidates(of.network).items():
        note(f"Measuring {of.network.name}, {name}")
        try:
            images = of.data.test_images.copy()  # PyTorch needs writable arrays
            logits = in_parts(_started(of, candidate), BATCH)(images)
        except ExportError as reason:
            note(f"Not measured: {of.network.name}, {name}: {reason}")
            continue
        expected = logits if expected is None else expected
        classes = logits.argmax(1)
        yield {
            "model": of.network.name,
            "runtime": name,
            "accuracy": float((classes == of.data.test_labels).mean()),
            "agreement": float((classes == expected.argmax(1)).mean()),
            "max_abs_error": float(np.abs(logits - expected).max()),
        }


def _candidates(network: Network) -> dict[str, Candidate]:
    """By their names in results."""
    made = partial(candidates, [network], threads=cores(), device="cpu")
    exact, lower = made(EXACT, ["fp32"]), made(["onnx-optimized"], ["fp16", "int8"])
    every = [*exact, *lower, *made(["openvino"], ["fp32", "bf16"])]
    return {label_of(each) + PRECISION_IN_NAMES[each.precision]: each for each in every}


def _started(of: Reference, candidate: Candidate) -> Classifier:
    """Raises ExportError if this machine cannot run the candidate."""
    from benchmarks.measure.first_calls import build
    from benchmarks.measure.reference import program

    if candidate.precision == "fp16":  # is slow on CPUs, so `build` refuses it there
        return start(program(of, candidate)[0], candidate)
    return build(of, candidate).run


if __name__ == "__main__":
    accuracy()
