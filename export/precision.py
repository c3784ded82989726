"""Converts an ONNX graph to float16 or int8, through an accuracy gate.

In: a float32 graph and a labelled dataset. Out: the converted graph, still from uint8 to float32, and both test
accuracies; or AccuracyError.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx

from export.equivalence import Classifier, Images, onnx_classifier
from export.errors import ExportError
from export.publishing.artifact import Artifact, onnx_artifact
from models.config import INPUT_NAME
from models.data import Dataset

CALIBRATION_IMAGES = 512
CALIBRATION_SEED = 0
TEST_BATCH = 256
# In float16 exponentials and squares overflow or lose digits.
KEPT_IN_FLOAT32 = ("Softmax", "LayerNormalization")

Lowered = Literal["fp16", "int8"]


class AccuracyError(ExportError):
    pass


@dataclass(frozen=True)
class Accuracies:
    """Test accuracy of a lowered file or of an engine, beside that of the float32 file or of ONNX Runtime."""

    accuracy: float
    reference: float
    images: int
    engine: str | None = None

    def __str__(self) -> str:
        ours, theirs = 100 * self.accuracy, 100 * self.reference
        where, there = (f" in {self.engine}", " in ONNX Runtime") if self.engine else ("", "")
        return f"test accuracy {ours:.2f} %{where} against {theirs:.2f} %{there}, {self.images} images"


def convert(
    proto: onnx.ModelProto, precision: Lowered, dataset: Dataset, max_drop_points: float
) -> tuple[onnx.ModelProto, Accuracies]:
    """Raises AccuracyError above `max_drop_points`, in percentage points."""
    lowered = to_fp16(proto) if precision == "fp16" else to_int8(proto, dataset.train_images)
    onnx.checker.check_model(lowered, full_check=True)
    before, after = (onnx_classifier(each.SerializeToString()) for each in (proto, lowered))
    return lowered, _gate(precision, None, after, before, dataset, max_drop_points)


def lower(
    source: Artifact, precision: Lowered, dataset: Dataset, max_drop_points: float
) -> tuple[Artifact, Accuracies]:
    """Of a float32 file. Raises AccuracyError as `convert`."""
    proto = onnx.load_from_string(source.data)
    del proto.metadata_props[:]  # of the float32 file
    lowered, converted = convert(proto, precision, dataset, max_drop_points)
    image: Any = source.sample.inputs[INPUT_NAME]
    facts = {**source.origin.facts, "float32_test_accuracy": converted.reference}
    origin = replace(source.origin, precision=precision, test_accuracy=converted.accuracy, facts=facts)
    return onnx_artifact(lowered, image, source.network, origin), converted


def engine_accuracy(
    engine: str, precision: str, classify: Classifier, data: bytes, dataset: Dataset, max_drop_points: float
) -> Accuracies:
    """Raises AccuracyError if `classify` is over `max_drop_points` percentage points below ONNX Runtime."""
    return _gate(engine, f"{engine} ({precision})", classify, onnx_classifier(data), dataset, max_drop_points)


def _gate(
    what: str, engine: str | None, ours: Classifier, theirs: Classifier, dataset: Dataset, max_drop_points: float
) -> Accuracies:
    measured = Accuracies(accuracy(ours, dataset), accuracy(theirs, dataset), len(dataset.test_labels), engine)
    if not 100 * (measured.reference - measured.accuracy) <= max_drop_points:  # NaN fails too
        raise AccuracyError(f"{what}: expected a drop of at most {max_drop_points} points, found {measured}")
    return measured


def accuracy(classify: Classifier, dataset: Dataset) -> float:
    images, labels = dataset.test_images, dataset.test_labels
    found = [classify(images[i : i + TEST_BATCH]).argmax(axis=1) for i in range(0, len(images), TEST_BATCH)]
    return float(np.mean(np.concatenate(found) == labels))


def to_fp16(proto: onnx.ModelProto, kept: Sequence[str] = KEPT_IN_FLOAT32) -> onnx.ModelProto:
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    model = OnnxModel(convert_float_to_float16(_copy(proto), keep_io_types=True, op_block_list=list(kept)))
    model.topological_sort()  # the converter appends its casts at the end
    converted: onnx.ModelProto = model.model
    # The converter casts a shared weight once per reader, under the same name.
    nodes = {node.output[0]: node for node in converted.graph.node}
    del converted.graph.node[:]
    converted.graph.node.extend(nodes.values())
    del converted.graph.value_info[:]  # stale types
    return converted


def to_int8(proto: onnx.ModelProto, train_images: Images, symmetric: bool = False) -> onnx.ModelProto:
    """Products of activations, patch embedding and head stay in float32: little work, but sensitive.

    `symmetric`: signed activations around 0, and float32 biases.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    with tempfile.TemporaryDirectory() as folder, _without_warnings():
        path = Path(folder, "int8.onnx")
        quantize_static(
            _copy(proto),
            str(path),
            _Calibration(train_images),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["MatMul", "Gemm", "Conv"],
            per_channel=True,
            activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=_kept_in_float32(proto.graph),
            extra_options={"ActivationSymmetric": True, "QuantizeBias": False} if symmetric else {},
        )
        return onnx.load(path)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silences the advice to infer shapes; the exporter has done it."""
    level = logging.root.manager.disable
    logging.disable(max(level, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(level)


def _kept_in_float32(graph: onnx.GraphProto) -> list[str]:
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type in ("MatMul", "Gemm", "Conv")]
    weighted = [node for node in products if any(name in ranks for name in node.input)]
    activations = [node for node in products if node not in weighted]
    # ONNX Runtime's int8 product takes no weights of each head, which have three axes, with a scale for each column.
    headed = [
        node for node in weighted if node.op_type == "MatMul" and any(ranks.get(name, 0) > 2 for name in node.input)
    ]
    return list(dict.fromkeys(node.name for node in (*activations, *headed, weighted[0], weighted[-1])))


class _Calibration:
    def __init__(self, train_images: Images) -> None:
        drawn = np.random.default_rng(CALIBRATION_SEED).permutation(len(train_images))[:CALIBRATION_IMAGES]
        self.batches: Iterator[Images] = iter(np.array_split(train_images[np.sort(drawn)], 8))

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self.batches, None)
        return None if batch is None else {INPUT_NAME: batch}


def _copy(proto: onnx.ModelProto) -> onnx.ModelProto:
    copied = onnx.ModelProto()
    copied.CopyFrom(proto)
    return copied
