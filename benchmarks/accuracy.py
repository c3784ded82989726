"""Command line: what every runtime and precision gets right, so that each row of speed has its accuracy.

All test images go through each of them; beside the accuracy stands how often it says the same as PyTorch and by how
much its logits differ at most.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.choices import NameList
from benchmarks.latency import COMPARED
from benchmarks.runtimes import RUNTIMES
from models.catalog import SHIPPED, shipped
from models.data import DIGIT_SETS, DataError, load_dataset

if TYPE_CHECKING:
    from export.equivalence import Classifier, Images, Logits
    from models.checkpoint import Checkpoint
    from models.data import Dataset

BATCH = 250
EXACT = ("torch", "torch-sdpa", "onnx", "onnx-folded", "onnx-optimized")  # those in float32, PyTorch first


@click.command()
@click.option("--models", type=NameList(SHIPPED), default=",".join(COMPARED), show_default=True)
@click.option("--dataset", type=click.Choice(DIGIT_SETS), default="mnist", show_default=True, help="Its test images.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Of idx files, else $MNIST_DIR or $EMNIST_DIR.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the table and the environment.")
def accuracy(models: list[str], dataset: str, data_dir: Path | None, json_path: Path | None) -> None:
    """Measure the shipped --models in every runtime and precision that this machine has."""
    from models.checkpoint import load
    from models.environment import describe
    from models.files import write_atomically

    try:
        data = load_dataset(dataset, data_dir)
        rows = [row for model in models for row in _rows(model, load(shipped(model)), data)]
    except DataError as error:
        raise click.ClickException(str(error)) from error
    _print(rows, len(data.test_labels))
    if json_path:
        environment = describe(len(os.sched_getaffinity(0)), "cpu")
        measured = {"dataset": dataset, "images": len(data.test_labels), "rows": rows}
        written = {"benchmark": "accuracy", "environment": environment, **measured}
        write_atomically(json_path, json.dumps(written, indent=2).encode())
        click.echo(f"Wrote {json_path}")


def _rows(model: str, checkpoint: Checkpoint, data: Dataset) -> Iterator[dict[str, Any]]:
    import numpy as np

    from benchmarks.unavailable import Unavailable
    from export.errors import ExportError

    expected: Logits | None = None
    for name, make in _contestants(checkpoint, data).items():
        click.echo(f"Measuring {model}, {name}", err=True)
        try:
            logits = _classify(make(), data.test_images.copy())  # PyTorch wants them writable
        except (Unavailable, ExportError) as reason:
            click.echo(f"Not measured: {model}, {name}: {reason}", err=True)
            continue
        expected = logits if expected is None else expected  # PyTorch is the first
        found = logits.argmax(1)
        yield {
            "model": model,
            "runtime": name,
            "accuracy": float((found == data.test_labels).mean()),
            "agreement": float((found == expected.argmax(1)).mean()),
            "max_abs_error": float(np.abs(logits - expected).max()),
        }


def _contestants(checkpoint: Checkpoint, data: Dataset) -> dict[str, Callable[[], Classifier]]:
    """By the name of the runtime and the precision, how each is made; raises Unavailable or ExportError there."""
    from benchmarks.contestants import program, start

    threads = len(os.sched_getaffinity(0))

    def exact(runtime: str) -> Classifier:
        return start(program(checkpoint.config, runtime), "cpu", threads)

    found: dict[str, Callable[[], Classifier]] = {RUNTIMES[name].label: partial(exact, name) for name in EXACT}
    for precision in ("fp16", "int8"):
        found[f"ONNX Runtime, all rewrites, {precision}"] = partial(_lowered, checkpoint, data, precision)
    for bfloat16 in (False, True):
        name = f"OpenVINO, all rewrites{', bfloat16' if bfloat16 else ''}"
        found[name] = partial(_in_openvino, checkpoint, bfloat16)
    return found


def _lowered(checkpoint: Checkpoint, data: Dataset, precision: Any) -> Classifier:
    from benchmarks.contestants import start
    from export.graph import export
    from export.precision import Lowering
    from export.rewrites.pipeline import ALL

    lowering = Lowering(precision, data, max_drop_points=100)  # what it costs is what is asked
    return start(export(checkpoint, ALL, lowering=lowering).onnx, "cpu", len(os.sched_getaffinity(0)))


def _in_openvino(checkpoint: Checkpoint, bfloat16: bool) -> Classifier:
    from export.graph import export
    from export.openvino_engine import openvino_classifier
    from export.rewrites.pipeline import ALL

    return openvino_classifier(export(checkpoint, ALL).onnx, bfloat16)


def _classify(classify: Classifier, images: Images) -> Logits:
    import numpy as np

    return np.concatenate([classify(images[i : i + BATCH]) for i in range(0, len(images), BATCH)])


def _print(rows: list[dict[str, Any]], images: int) -> None:
    from benchmarks.timing import table

    header = ("model", "runtime", "accuracy %", "same class %", "max error")
    cells = [
        (
            row["model"],
            row["runtime"],
            f"{100 * row['accuracy']:.2f}",
            f"{100 * row['agreement']:.2f}",
            f"{row['max_abs_error']:.1e}",
        )
        for row in rows
    ]
    click.echo(table(header, cells))
    click.echo(f"{images} test images; class and error against PyTorch eager")


if __name__ == "__main__":
    accuracy()
