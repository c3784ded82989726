"""In: networks, shipped or of the user. Out: their accuracy in every runtime and precision.

Other options measure the accuracy on digits of other pens, on difficult pictures, or of a published model.
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
    checkpoint_options,
    chosen,
    digits,
    json_option,
    models_to_measure,
    names_option,
    user_networks,
)
from benchmarks.measure.progress import note
from export.compare_logits import in_parts
from models.catalog import OF_DIGITS, SHIPPED, shipped

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image

    from benchmarks.measure.candidate import Candidate
    from benchmarks.measure.reference import Reference
    from export.compare_logits import Classifier, Images, Logits
    from models.checkpoints.checkpoint import Checkpoint
    from models.data import Dataset

BATCH = 250
BROUGHT = 400  # digits for each kind of difficult picture
UNLABELLED = 200  # 8x8 digits to adapt a network to; the other 8x8 digits measure the adapted network
EXACT = ("torch", "torch-sdpa", "onnx", "onnx-folded", "onnx-optimized")  # float32; the first is the reference
PRECISION_IN_NAMES = {"fp32": "", "fp16": ", fp16", "bf16": ", bfloat16", "int8": ", int8"}


@click.command()
@names_option(
    "--model",
    "models",
    SHIPPED,
    help=f"[default: {', '.join(COMPARED)}; with --conditions and --brought all of digits]",
)
@click.option("--conditions", is_flag=True, help="As served, on digits of other pens, scanners and cameras.")
@click.option("--brought", is_flag=True, help="As clients read them: digits in boxes, turned, shaded; letters, shapes.")
@checkpoint_options
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
                click.echo(_accuracy_line(row))
        return
    from_checkpoints = user_networks(checkpoints, dataset, data_dir)
    default = OF_DIGITS if conditions or brought else COMPARED
    names = models_to_measure(chosen(models, SHIPPED) or default, from_checkpoints)
    networks = [*(Network(name, shipped(name), True, dataset, data_dir) for name in names), *from_checkpoints]
    measure = _on_conditions if conditions else _on_brought if brought else None
    with recording(json_path, cores()) as record:
        for row in measure(networks, digits(dataset or "mnist", data_dir)) if measure else _on_data(networks):
            record.add(row)
    click.echo(show(record.run(), "conditions" if conditions else "brought" if brought else "accuracy"))


def _check_alone(dataset: str | None, others: object) -> None:
    if others:
        raise click.UsageError("expected --published alone, found --model, --checkpoint, --conditions or --brought")
    if dataset is None:
        raise click.UsageError("expected --dataset, a name or a folder of pictures by class, with --published")


def _accuracy_line(row: dict[str, Any]) -> str:
    """A published model's accuracy and, if the row has a temperature, its calibration."""
    accuracy = f"{row['model']}: {100 * row['accuracy']:.2f} % of {row['images']} pictures right"
    if row["part"] == "all":
        accuracy += " (all of the folder, also what a training of the model saw)"
    if "temperature" not in row:
        return accuracy
    before, after = 100 * row["calibration_error_before"], 100 * row["calibration_error"]
    calibration = f"temperature {row['temperature']:g} fits: calibration error {before:.1f} -> {after:.1f} %"
    return f"{accuracy}; {calibration} on the half that did not fit it"


def _on_data(networks: Sequence[Network]) -> Iterator[dict[str, Any]]:
    """A row for each network and runtime, on the test images of the network's dataset."""
    from benchmarks.measure.reference import make_reference

    for network in networks:
        reference = make_reference(network)  # exports the network once for all runtimes
        for row in _in_runtimes(reference):
            yield {"dataset": reference.data.name, "images": len(reference.data.test_labels), **row}


def _on_conditions(networks: Sequence[Network], data: Dataset) -> Iterator[dict[str, Any]]:
    """A row for each network and kind of distortion, and for the network adapted to unlabelled 8x8 digits."""
    from benchmarks.measure.distorted_digits import SMALL, conditions
    from models.checkpoints.checkpoint import load

    _check_digits("--conditions", networks, data)
    labelled = conditions(data)
    for network in networks:
        note(f"Measuring {network.name}")
        checkpoint = load(network.path)
        rewritten = _rewritten_classifier(checkpoint.path)
        cases = {name: (rewritten, images, labels) for name, (images, labels) in labelled.items()}
        images, labels = labelled[SMALL]
        if adapted := _adapted(checkpoint, images[:UNLABELLED]):
            cases[f"{SMALL}, adapted"] = adapted, images[UNLABELLED:], labels[UNLABELLED:]
        for name, (classify, images, labels) in cases.items():
            accuracy = float((in_parts(classify, BATCH)(images).argmax(1) == labels).mean())
            row = {"model": network.name, "condition": name, "accuracy": accuracy}
            yield {"dataset": data.name, "images": len(labels), **row}


def _check_digits(option: str, networks: Sequence[Network], data: Dataset) -> None:
    for network in networks:
        if (network.config.input_shape, network.config.labels) != (data.test_images.shape[1:], data.labels):
            raise click.UsageError(f"{option}: expected networks that read digits, found {network.name}")


def _on_brought(networks: Sequence[Network], data: Dataset) -> Iterator[dict[str, Any]]:
    """A row for each network and kind of difficult picture, with shares of all pictures.

    A picture without ink counts as rejected.
    """
    import numpy as np

    from benchmarks.measure.difficult_pictures import DIGITS, NOT_DIGITS, pictures
    from common.energy_score import evidence
    from models.checkpoints.checkpoint import load

    _check_digits("--brought", networks, data)
    indices = np.linspace(0, len(data.test_labels) - 1, min(BROUGHT, len(data.test_labels))).astype(int)
    digit_images, digit_labels = data.test_images[indices, 0], data.test_labels[indices]
    cases = {name: (*_read(pictures(name, digit_images)), digit_labels) for name in DIGITS}
    cases |= {name: (*_read(draw()), None) for name, draw in NOT_DIGITS.items()}
    for network in networks:
        note(f"Measuring {network.name}")
        evidence_limit = load(network.path).metrics.get("evidence_limit", -np.inf)
        classify = _rewritten_classifier(network.path)
        for name, (inputs, has_ink, labels) in cases.items():
            logits = in_parts(classify, BATCH)(inputs)
            rejected = (evidence(logits) < evidence_limit) | ~has_ink
            row = {"model": network.name, "condition": name, "rejected": float(rejected.mean())}
            if labels is not None:
                right = (logits.argmax(1) == labels) & has_ink
                row |= {"accuracy": float(right.mean()), "right": float((right & ~rejected).mean())}
            yield {"dataset": data.name, "images": len(inputs), **row}


def _read(pictures: Iterable[Image.Image]) -> tuple[Images, NDArray[np.bool_]]:
    """Reads pictures as clients do: inputs uint8 (n, 1, 28, 28), and which inputs have ink, bool (n,)."""
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


def _adapted(checkpoint: Checkpoint, images: Images) -> Classifier | None:
    """The network after `vitbn adapt` with `images`; None for a network without BatchNorm."""
    import torch

    from models.checkpoints.checkpoint import save
    from models.training.adaptation import AdaptationError, adapt, last_block_of_training

    try:
        network = adapt(checkpoint.model, torch.from_numpy(images), last_block_of_training(checkpoint.metrics))
    except AdaptationError:
        return None
    with TemporaryDirectory() as folder:
        save(path := Path(folder) / "adapted.safetensors", network, checkpoint.config, {})
        return _rewritten_classifier(path)


def _rewritten_classifier(path: Path) -> Classifier:
    from export.checkpoint_to_onnx import Form
    from export.checkpoint_to_version import export_checkpoint
    from export.compare_logits import onnx_classifier

    return onnx_classifier(export_checkpoint(path, Form(rewrites="all")).onnx)


def _in_runtimes(reference: Reference) -> Iterator[dict[str, Any]]:
    """A row for each candidate that runs here. `agreement`: share of images with the first candidate's class."""
    import numpy as np

    from export.errors import ExportError

    expected: Logits | None = None
    model, data = reference.network.name, reference.data
    for name, candidate in _candidates(reference.network).items():
        note(f"Measuring {model}, {name}")
        try:
            images = data.test_images.copy()  # PyTorch needs writable arrays
            logits = in_parts(_started(reference, candidate), BATCH)(images)
        except ExportError as reason:
            note(f"Not measured: {model}, {name}: {reason}")
            continue
        expected = logits if expected is None else expected
        classes = logits.argmax(1)
        yield {
            "model": model,
            "runtime": name,
            "accuracy": float((classes == data.test_labels).mean()),
            "agreement": float((classes == expected.argmax(1)).mean()),
            "max_abs_error": float(np.abs(logits - expected).max()),
        }


def _candidates(network: Network) -> dict[str, Candidate]:
    """The candidates to measure, by their names in results; PyTorch first."""
    of_network = partial(candidates, [network], threads=cores(), device="cpu")
    pytorch_and_onnxruntime = [*of_network(EXACT, ["fp32"]), *of_network(["onnx-optimized"], ["fp16", "int8"])]
    compared = [*pytorch_and_onnxruntime, *of_network(["openvino"], ["fp32", "bf16"])]
    return {label_of(candidate) + PRECISION_IN_NAMES[candidate.precision]: candidate for candidate in compared}


def _started(reference: Reference, candidate: Candidate) -> Classifier:
    """Raises ExportError if this machine cannot run the candidate."""
    from benchmarks.measure.first_calls import build
    from benchmarks.measure.reference import program

    if candidate.precision == "fp16":  # slow on CPUs, where `build` refuses to time it
        return start(program(reference, candidate)[0], candidate)
    return build(reference, candidate).run


if __name__ == "__main__":
    accuracy()
