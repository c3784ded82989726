"""In: networks, shipped or of the user. Out: their accuracy in every runtime and precision.

Other options measure the accuracy on digits of other pens, on pictures that users bring, or of a published model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.measure.candidate import Candidate
from benchmarks.measure.devices import cores
from benchmarks.measure.engines import COMPARED, candidates, start
from benchmarks.measure.measured_network import SCORED_BATCH, Network
from benchmarks.measure.options import (
    checkpoint_options,
    chosen,
    digits,
    models_to_measure,
    names_option,
    user_networks,
)
from benchmarks.measure.progress import note
from benchmarks.measure.result_file import Record
from benchmarks.reporting.recorded_decorator import recorded
from export.compare_logits import in_parts
from models.catalog import OF_DIGITS, SHIPPED, shipped

if TYPE_CHECKING:
    from benchmarks.measure.reference import Reference
    from export.compare_logits import Classifier, Logits
    from models.data import Dataset

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
@recorded()
def accuracy(
    record: Record,
    models: tuple[str, ...],
    conditions: bool,
    brought: bool,
    checkpoints: tuple[Path, ...],
    dataset: str | None,
    data_dir: Path | None,
    published: tuple[Path, ...],
) -> None:
    """Measure networks, shipped or yours, in every runtime and precision that this machine has."""
    if published:
        _check_alone(dataset, models or checkpoints or conditions or brought)
    from benchmarks.measure.published_accuracy import published_row
    from benchmarks.reporting.tables import show

    if conditions and brought:
        raise click.UsageError("expected --conditions or --brought, found both")
    if published and dataset:
        record.threads = 1
        for folder in published:
            record.add(row := published_row(folder, dataset, data_dir))
            click.echo(_accuracy_line(row))
        return
    table = "conditions" if conditions else "brought" if brought else "accuracy"
    default = COMPARED if table == "accuracy" else OF_DIGITS
    from_checkpoints = user_networks(checkpoints, dataset, data_dir)
    names = models_to_measure(chosen(models, SHIPPED) or default, from_checkpoints)
    networks = [*(Network(name, shipped(name), True, dataset, data_dir) for name in names), *from_checkpoints]
    if table == "accuracy":
        rows = _on_data(networks)
    else:
        rows = _on_digits(table, networks, digits(dataset or "mnist", data_dir))
    for row in rows:
        record.add(row)
    click.echo(show(record.run(), table))


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
    verdict = "fits" if after < before else "brings nothing"
    calibration = f"temperature {row['temperature']:g} {verdict}: calibration error {before:.1f} -> {after:.1f} %"
    return f"{accuracy}; {calibration} on the half that did not fit it"


def _on_data(networks: Sequence[Network]) -> Iterator[dict[str, Any]]:
    """A row for each network and runtime, on the test images of the network's dataset."""
    from benchmarks.measure.reference import make_reference

    for network in networks:
        reference = make_reference(network)  # exports the network once for all runtimes
        for row in _in_runtimes(reference):
            yield {"dataset": reference.data.name, "images": len(reference.data.test_labels), **row}


def _on_digits(option: str, networks: Sequence[Network], data: Dataset) -> Iterator[dict[str, Any]]:
    """The rows of --conditions or --brought. Raises UsageError for a network that reads other pictures."""
    for network in networks:
        if (network.config.input_shape, network.config.labels) != (data.test_images.shape[1:], data.labels):
            raise click.UsageError(f"--{option}: expected networks that read digits, found {network.name}")
    if option == "conditions":
        from benchmarks.measure.image_corruptions import rows_by_condition

        return rows_by_condition(networks, data)
    from benchmarks.measure.synthetic_user_pictures import brought_rows

    return brought_rows(networks, data)


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
            logits = in_parts(_started(reference, candidate), SCORED_BATCH)(images)
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
    return {candidate.runtime.label + PRECISION_IN_NAMES[candidate.precision]: candidate for candidate in compared}


def _started(reference: Reference, candidate: Candidate) -> Classifier:
    """Raises ExportError if this machine cannot run the candidate."""
    from benchmarks.measure.first_calls import build
    from benchmarks.measure.reference import program

    if candidate.precision == "fp16":  # slow on CPUs, where `build` refuses to time it
        return start(program(reference, candidate)[0], candidate)
    return build(reference, candidate).run


if __name__ == "__main__":
    accuracy()
