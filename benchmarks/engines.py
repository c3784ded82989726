"""Command line: one ONNX file in each CPU engine, and requests that a backend answers together or one by one.

All contestants take turns in one run on all cores, in this process, and first answer all test images: a row holds the
accuracy beside the time. The requests go through the code of the server's backends, without the server.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.ways import cores
from models.catalog import SHIPPED, shipped
from models.data import DIGIT_SETS, DataError, load_dataset

if TYPE_CHECKING:
    from export.equivalence import Classifier, Images
    from serving.batching import Array
    from serving.contract import Tensor

SIZES = (1, 16, 128)  # images a call
REQUESTS = (2, 8, 32)  # requests of one image in one call of the backend
ORT = "ONNX Runtime, float32"


class AsEngine:
    """A classifier as the backends see a loaded model."""

    inputs: Mapping[str, Tensor] = {}
    outputs: Mapping[str, Tensor] = {}

    def __init__(self, classify: Classifier) -> None:
        self.classify = classify

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """The logits of the images in `feeds`, its only tensor."""
        return [self.classify(images) for images in feeds.values()]


@click.command()
@click.option("--model", type=click.Choice(SHIPPED), default="vitbn", show_default=True)
@click.option("--dataset", type=click.Choice(DIGIT_SETS), default="mnist", show_default=True, help="Its test images.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Of idx files, else $MNIST_DIR or $EMNIST_DIR.")
@click.option("--seconds", type=click.FloatRange(1), default=30, show_default=True, help="For all together.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write every sample and the environment.")
def engines(model: str, dataset: str, data_dir: Path | None, seconds: float, json_path: Path | None) -> None:
    """Time the same file, all rewrites done, in ONNX Runtime and OpenVINO, and requests batched or one by one."""
    from benchmarks.timing import table, time_interleaved
    from export.openvino_engine import EngineMissing
    from export.precision import accuracy
    from models.environment import describe
    from models.files import write_atomically

    try:
        data = load_dataset(dataset, data_dir)
        classifiers = _classifiers(model)
    except (DataError, EngineMissing) as error:
        raise click.ClickException(str(error)) from error
    accuracies = {name: accuracy(classify, data) for name, classify in classifiers.items()}
    runs = _runs(classifiers, data.test_images)
    measured = time_interleaved(runs, seconds, lambda share: None)
    rows: list[dict[str, Any]] = []
    for name, durations in measured.items():
        percentiles = {f"p{percent}_ms": durations.percentile_ms(percent) for percent in (50, 90)}
        rows.append({"name": name} | percentiles | {"samples_ns": durations.samples_ns})
    for name, share in accuracies.items():
        click.echo(f"{name}: test accuracy {100 * share:.2f} %")
    header = ("contestant", "rounds", "p50 ms", "p90 ms")
    lines = [(row["name"], str(len(row["samples_ns"])), f"{row['p50_ms']:.3f}", f"{row['p90_ms']:.3f}") for row in rows]
    click.echo(table(header, lines))
    if json_path:
        written = {"model": model, "accuracies": accuracies, "rows": rows}
        result = {"benchmark": "engines", "environment": describe(cores(), "cpu"), **written}
        write_atomically(json_path, json.dumps(result, indent=2).encode())
        click.echo(f"Wrote {json_path}")


def _classifiers(model: str) -> dict[str, Classifier]:
    """The shipped `model` with all rewrites in every engine and precision that this CPU has."""
    from benchmarks.contestants import start
    from export.graph import export
    from export.openvino_engine import has_bfloat16, openvino_classifier
    from export.rewrites.pipeline import ALL
    from models.checkpoint import load

    data = export(load(shipped(model)), ALL).onnx
    found = {ORT: start(data, "cpu", cores()), "OpenVINO, float32": openvino_classifier(data, bfloat16=False)}
    if has_bfloat16():
        found["OpenVINO, bfloat16"] = openvino_classifier(data, bfloat16=True)
    return found


def _runs(classifiers: Mapping[str, Classifier], images: Images) -> dict[str, Callable[[], object]]:
    """Every engine at every size, and ONNX Runtime behind the backend's batching and without it."""
    from serving.batching import Call, answer

    runs: dict[str, Callable[[], object]] = {
        f"{name}, {size} a call": partial(classify, images[:size])
        for size in SIZES
        for name, classify in classifiers.items()
    }
    engine = AsEngine(classifiers[ORT])
    for count in REQUESTS:
        calls = [Call({"image": images[i : i + 1]}, frozenset({"logits"})) for i in range(count)]
        for how, batched in (("together", True), ("one by one", False)):
            runs[f"{count} requests {how}"] = partial(answer, engine, ["logits"], calls, batched)
    return runs


if __name__ == "__main__":
    engines()
