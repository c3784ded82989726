"""Lowers a float32 ONNX graph to another precision, and refuses the result if it loses too much test accuracy.

In: a float32 graph, and a labelled dataset, whose training images calibrate int8. Out: the lowered graph, whose input
stays uint8 and whose output float32, and the test accuracies before and after; or AccuracyError.
`export/precision_table.py` describes the precisions.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from export.compare_logits import Classifier, Images, in_parts, onnx_classifier
from export.errors import ExportError
from export.precision_table import Precision
from export.publishing.artifact import Artifact, onnx_artifact
from models.data import Dataset
from models.networks.config import INPUT_NAME

CALIBRATION_IMAGES = 512
CALIBRATION_SEED = 0
TEST_BATCH = 256
# In float16 exponentials and squares overflow or lose digits.
KEPT_IN_FLOAT32 = ("Softmax", "LayerNormalization")
BFLOAT16_OPSET = 22  # the first with such convolutions; none of our operators changes between 20 and it but in types


class AccuracyError(ExportError):
    """The test accuracy falls by more than is allowed."""


@dataclass(frozen=True)
class Accuracies:
    """Two test accuracies, as shares of `images` test images.

    `accuracy`: of a lowered file, or of an engine. `reference`: of the float32 file, or of ONNX Runtime. `engine`: the
    engine's name and precision; None for a lowered file.
    """

    accuracy: float
    reference: float
    images: int
    engine: str | None = None

    def __str__(self) -> str:
        percent, reference_percent = 100 * self.accuracy, 100 * self.reference
        where, there = (f" in {self.engine}", " in ONNX Runtime") if self.engine else ("", "")
        return f"test accuracy {percent:.2f} %{where} against {reference_percent:.2f} %{there}, {self.images} images"


def convert(
    proto: onnx.ModelProto, precision: Precision, dataset: Dataset, max_drop_points: float
) -> tuple[onnx.ModelProto, Accuracies]:
    """The graph in `precision`, and the test accuracies before and after.

    Raises AccuracyError if the accuracy falls by more than `max_drop_points` percentage points.
    """
    converted = lowered(proto, precision, dataset.train_images)
    before, after = (onnx_classifier(model.SerializeToString()) for model in (proto, converted))
    return converted, _gate(precision, None, after, before, dataset, max_drop_points)


def lower(
    source: Artifact, precision: Precision, dataset: Dataset, max_drop_points: float
) -> tuple[Artifact, Accuracies]:
    """Converts the artifact of a float32 file: graph, sample and manifest. Raises AccuracyError as `convert`."""
    proto = onnx.load_from_string(source.data)
    del proto.metadata_props[:]  # they describe the float32 file
    converted, accuracies = convert(proto, precision, dataset, max_drop_points)
    image: Any = source.sample.inputs[INPUT_NAME]
    facts = {**source.origin.facts, "float32_test_accuracy": accuracies.reference}
    origin = replace(source.origin, precision=precision, test_accuracy=accuracies.accuracy, facts=facts)
    return onnx_artifact(converted, image, source.network, origin), accuracies


def engine_accuracy(
    engine: str, precision: str, classify: Classifier, data: bytes, dataset: Dataset, max_drop_points: float
) -> Accuracies:
    """Test accuracy of `classify`, which runs the ONNX file `data` in another engine, and of ONNX Runtime.

    Raises AccuracyError if the engine's is more than `max_drop_points` percentage points lower.
    """
    return _gate(engine, f"{engine} ({precision})", classify, onnx_classifier(data), dataset, max_drop_points)


def _gate(
    what: str, engine: str | None, lossy: Classifier, reference: Classifier, dataset: Dataset, max_drop_points: float
) -> Accuracies:
    """Measures both. `what`: named in the error. `engine`: as of Accuracies. Raises AccuracyError."""
    measured = Accuracies(accuracy(lossy, dataset), accuracy(reference, dataset), len(dataset.test_labels), engine)
    if not 100 * (measured.reference - measured.accuracy) <= max_drop_points:  # NaN fails too
        raise AccuracyError(f"{what}: expected a drop of at most {max_drop_points} points, found {measured}")
    return measured


def accuracy(classify: Classifier, dataset: Dataset) -> float:
    """Share of the test images that get their label."""
    classes = in_parts(classify, TEST_BATCH)(dataset.test_images).argmax(axis=1)
    return float(np.mean(classes == dataset.test_labels))


def lowered(
    proto: onnx.ModelProto, precision: Precision, train_images: Images, strongly_typed: bool = False
) -> onnx.ModelProto:
    """The graph in `precision`; fp32 and tf32 return it as it is.

    `train_images`: uint8 (n, C, H, W), of which a sample calibrates int8. `strongly_typed`: in the form that TensorRT
    takes. Raises onnx.checker.ValidationError if the conversion makes an invalid graph.
    """
    if precision == "fp16":
        converted = to_fp16(proto)
    elif precision == "bf16":
        converted = to_bf16(proto)
    elif precision == "int8":
        converted = to_int8(proto, train_images, symmetric=strongly_typed)
    else:
        return proto
    onnx.checker.check_model(converted, full_check=True)
    return converted


def to_bf16(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The float16 graph with bfloat16 in place of float16; its weights are rounded from float32, not from float16."""
    converted = to_fp16(proto)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    converted.opset_import[0].version = BFLOAT16_OPSET
    for tensor in converted.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            _set_bfloat16(tensor, weights.get(tensor.name, numpy_helper.to_array(tensor)))
    for node in converted.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.BFLOAT16
            if attribute.t.data_type == TensorProto.FLOAT16:
                _set_bfloat16(attribute.t, numpy_helper.to_array(attribute.t))
    return converted


def _set_bfloat16(tensor: onnx.TensorProto, value: Any) -> None:
    import ml_dtypes

    tensor.CopyFrom(numpy_helper.from_array(np.asarray(value).astype(ml_dtypes.bfloat16), tensor.name))


def to_fp16(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The graph in float16, except the operators of KEPT_IN_FLOAT32, input and output."""
    from onnxruntime.transformers.float16 import convert_float_to_float16
    from onnxruntime.transformers.onnx_model import OnnxModel

    copy = deepcopy(proto)
    model = OnnxModel(convert_float_to_float16(copy, keep_io_types=True, op_block_list=list(KEPT_IN_FLOAT32)))
    model.topological_sort()  # the converter appends its casts at the end
    converted: onnx.ModelProto = model.model
    # The converter casts a shared weight once per reader, under the same name.
    nodes = {node.output[0]: node for node in converted.graph.node}
    del converted.graph.node[:]
    converted.graph.node.extend(nodes.values())
    del converted.graph.value_info[:]  # stale types
    return converted


def to_int8(proto: onnx.ModelProto, train_images: Images, symmetric: bool = False) -> onnx.ModelProto:
    """Quantises products with weights: int8 weights with a scale for each column, 8-bit activations (QDQ format).

    Products of two activations, products of probabilities, the patch embedding and the head stay in float32: they are
    little work, but sensitive. `symmetric`: activations are signed with zero point 0, and biases float32, as TensorRT
    demands.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    with tempfile.TemporaryDirectory() as folder, without_warnings():
        path = Path(folder, "int8.onnx")
        quantize_static(
            deepcopy(proto),
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
def without_warnings() -> Iterator[None]:
    """Silences the quantiser's advice to infer shapes first: the exporter has inferred them."""
    level = logging.root.manager.disable
    logging.disable(max(level, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(level)


def _kept_in_float32(graph: onnx.GraphProto) -> list[str]:
    """Names of the products that int8 leaves in float32, each once."""
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type in ("MatMul", "Gemm", "Conv")]
    weighted = [node for node in products if any(name in ranks for name in node.input)]
    activations = [node for node in products if node not in weighted]
    # Weights with a matrix for each head have three axes; ONNX Runtime's int8 product takes no scale per column there.
    per_head = [
        node for node in weighted if node.op_type == "MatMul" and any(ranks.get(name, 0) > 2 for name in node.input)
    ]
    producers = {name: node for node in graph.node for name in node.output}
    probabilities = [node for node in weighted if _is_softmax(node.input[0], producers)]
    kept = (*activations, *per_head, *probabilities, weighted[0], weighted[-1])
    return list(dict.fromkeys(node.name for node in kept))


def _is_softmax(name: str, producers: Mapping[str, onnx.NodeProto]) -> bool:
    """Whether the value is the output of a Softmax, perhaps reshaped: int8 has few levels for small numbers."""
    while (node := producers.get(name)) is not None and node.op_type == "Reshape":
        name = node.input[0]
    return node is not None and node.op_type == "Softmax"


class _Calibration:
    """Gives the quantiser batches of drawn training images, then None."""

    def __init__(self, train_images: Images) -> None:
        drawn = np.random.default_rng(CALIBRATION_SEED).permutation(len(train_images))[:CALIBRATION_IMAGES]
        self.batches: Iterator[Images] = iter(np.array_split(train_images[np.sort(drawn)], 8))

    def get_next(self) -> dict[str, Any] | None:
        batch = next(self.batches, None)
        return None if batch is None else {INPUT_NAME: batch}
