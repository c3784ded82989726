"""Times ONNX Runtime and OpenVINO on the same file, and requests through the backend's code, without the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.measure.engines import ORT
from benchmarks.measure.measured_network import rewrite_checkpoint
from benchmarks.measure.options import dataset_options, digits, seconds_option
from benchmarks.measure.result_file import Record
from benchmarks.reporting.recorded_decorator import recorded
from models.catalog import OF_DIGITS, shipped

if TYPE_CHECKING:
    from benchmarks.measure.interleaved_timing import Durations
    from export.compare_logits import Classifier, Images
    from serving.backends.batching import Array
    from serving.backends.config_check import Tensor

SIZES = (1, 16, 128)  # images per call
REQUESTS = (2, 8, 32)  # one-image requests in one call of the backend


class LoadedModel:
    """A classifier with the interface of the models that the backend's code calls."""

    inputs: Mapping[str, Tensor] = {}
    outputs: Mapping[str, Tensor] = {}

    def __init__(self, classify: Classifier) -> None:
        self.classify = classify

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Classifies the images in `feeds` and returns [logits]; `names` is not read."""
        return [self.classify(images) for images in feeds.values()]


@click.command()
@click.option("--model", type=click.Choice(OF_DIGITS), default="vitbn", show_default=True)
@dataset_options
@seconds_option(30, "At most, for all; three rounds in any case.")
@recorded("engines")
def engines(record: Record, model: str, dataset: str, data_dir: Path | None, seconds: float) -> None:
    """Time the same file, all rewrites done, in ONNX Runtime and OpenVINO, and requests batched or one by one."""
    from benchmarks.measure.interleaved_timing import time_interleaved
    from export.precision import accuracy

    data, classifiers = digits(dataset, data_dir), _classifiers(model)
    accuracies = {name: accuracy(classify, data) for name, classify in classifiers.items()}
    calls = _calls(classifiers, data.test_images)
    time_interleaved(calls, seconds, "engines", use=lambda measured: record.update(_rows(model, accuracies, measured)))


def _classifiers(model: str) -> dict[str, Classifier]:
    """Name of an engine and its precision -> classifier of the shipped model with all rewrites."""
    from benchmarks.measure.engines import start
    from export.engines.openvino_engine import has_bfloat16, openvino_classifier

    data = rewrite_checkpoint(shipped(model)).onnx
    classifiers = {ORT: start(data), "OpenVINO, float32": openvino_classifier(data, bfloat16=False)}
    if has_bfloat16():
        classifiers["OpenVINO, bfloat16"] = openvino_classifier(data, bfloat16=True)
    return classifiers


def _calls(classifiers: Mapping[str, Classifier], images: Images) -> dict[str, Callable[[], object]]:
    """Name -> timed call: batches of SIZES in each engine, and REQUESTS of one image, batched and one by one."""
    from serving.backends.batching import Call, EqualShapes, answer

    calls: dict[str, Callable[[], object]] = {
        f"{name}, {size} a call": partial(classify, images[:size])
        for size in SIZES
        for name, classify in classifiers.items()
    }
    loaded = LoadedModel(classifiers[ORT])
    for count in REQUESTS:
        requests = [Call({"image": images[i : i + 1]}, frozenset({"logits"})) for i in range(count)]
        for how, joining in (("together", EqualShapes()), ("one by one", None)):
            calls[f"{count} requests {how}"] = partial(answer, loaded, ["logits"], requests, joining)
    return calls


def _rows(model: str, accuracies: Mapping[str, float], measured: Mapping[str, Durations]) -> list[dict[str, Any]]:
    return [
        {"model": model, "name": name, "accuracy": accuracies.get(name.rpartition(", ")[0])} | durations.row()
        for name, durations in measured.items()
    ]
