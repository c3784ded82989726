import logging
from collections import Counter
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import invoke, ok
from onnx import TensorProto, numpy_helper

from export import precision
from export.checkpoint_to_onnx import Exported, Form
from export.checkpoint_to_version import export_checkpoint
from export.compare_logits import onnx_classifier
from export.precision import Accuracies, AccuracyError, accuracy, convert
from export.to_onnx import export as command
from models.checkpoints.checkpoint import load
from models.data import Dataset

Made = dict[str, tuple[onnx.ModelProto, Accuracies]]


@pytest.fixture(scope="module")
def float32(trained: Path) -> Exported:
    return export_checkpoint(trained, Form(rewrites="all"))


def float32_proto(exported: Exported) -> onnx.ModelProto:
    return onnx.load_from_string(exported.onnx)


@pytest.fixture(scope="module")
def converted(float32: Exported, digits: Dataset) -> Made:
    return {kind: convert(float32_proto(float32), kind, digits, 1.0) for kind in ("fp16", "int8")}


def initializer_types(proto: onnx.ModelProto) -> Counter[int]:
    return Counter(tensor.data_type for tensor in proto.graph.initializer if len(tensor.dims) > 1)


@pytest.mark.parametrize("kind", ["fp16", "int8"])
def test_the_served_tensors_stay_and_the_accuracy_too(kind: str, converted: Made, digits: Dataset) -> None:
    proto, gate = converted[kind]
    assert proto.graph.input[0].type.tensor_type.elem_type == TensorProto.UINT8
    assert proto.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert gate.images == len(digits.test_labels)
    classify = onnx_classifier(proto.SerializeToString())
    assert gate.accuracy == accuracy(classify, digits) > 0.95
    for size in (1, 3, 64):
        assert classify(digits.test_images[:size]).dtype == np.float32


def test_float16_keeps_softmax_in_float32(converted: Made) -> None:
    proto = converted["fp16"][0]
    types = initializer_types(proto)
    assert types[TensorProto.FLOAT16] > 5
    assert types[TensorProto.FLOAT] == 0
    producers = {output: node for node in proto.graph.node for output in node.output}
    softmaxes = [node for node in proto.graph.node if node.op_type == "Softmax"]
    assert softmaxes
    assert all(producers[node.input[0]].op_type == "Cast" for node in softmaxes)


def test_int8_has_a_scale_for_each_channel_and_is_reproducible(
    converted: Made, float32: Exported, digits: Dataset
) -> None:
    proto = converted["int8"][0]
    assert initializer_types(proto)[TensorProto.INT8] > 5
    weights = {tensor.name for tensor in proto.graph.initializer if tensor.data_type == TensorProto.INT8}
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    scales = [
        node.input[1] for node in proto.graph.node if node.op_type == "DequantizeLinear" and node.input[0] in weights
    ]
    assert scales
    assert all(numpy_helper.to_array(tensors[name]).size > 1 for name in scales if tensors[name].dims)
    assert proto.SerializeToString() == convert(float32_proto(float32), "int8", digits, 100)[0].SerializeToString()


def test_products_of_two_activations_are_not_quantised(float32: Exported) -> None:
    graph = float32_proto(float32).graph
    kept = precision._kept_in_float32(graph)
    assert len(kept) == 2 * 2 + 2  # scores and weighted sums, the patches, the head


def damaged(proto: onnx.ModelProto, images: object = None, symmetric: bool = False) -> onnx.ModelProto:
    copied = deepcopy(proto)
    heads = [tensor for tensor in copied.graph.initializer if len(tensor.dims) == 2 and 10 in tensor.dims]
    assert heads
    for head in heads:
        head.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(head), head.name))
    return copied


def test_a_conversion_that_costs_too_much_is_refused(
    float32: Exported, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "to_int8", damaged)
    with pytest.raises(AccuracyError, match=r"int8: expected a drop of at most 0.1 points, found test acc"):
        convert(float32_proto(float32), "int8", digits, 0.1)
    with pytest.raises(AccuracyError, match="int8: expected a drop of at most nan points"):
        convert(float32_proto(float32), "int8", digits, float("nan"))
    assert convert(float32_proto(float32), "int8", digits, 100)[1].accuracy < 0.5


def test_the_command_writes_nothing_through_a_closed_gate(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "to_fp16", damaged)
    options = "--rewrites", "all", "--precision", "fp16", "--repository", tmp_path / "r"
    result = invoke(command, "--checkpoint", trained, *options)
    assert result.exit_code == 1
    assert result.output.splitlines()[-1].startswith("Error: fp16: expected a drop of at most 0.1 points")
    assert not list(tmp_path.iterdir())


def test_the_callers_level_of_logging_returns() -> None:
    logging.disable(logging.ERROR)
    with precision.without_warnings():
        assert logging.root.manager.disable == logging.ERROR
    restored = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    assert restored == logging.ERROR


def test_the_command_stores_both_accuracies(trained: Path, tmp_path: Path) -> None:
    output = tmp_path / "int8.onnx"
    options = "--precision", "int8", "--max-accuracy-drop", 2, "--output", output
    result = ok(command, "--checkpoint", trained, *options)
    assert "Converted to int8: test accuracy" in result.output
    metadata = {entry.key: entry.value for entry in onnx.load(output).metadata_props}
    assert metadata["precision"] == "int8"
    assert 0.9 < float(metadata["test_accuracy"]) <= 1
    assert float(metadata["float32_test_accuracy"]) == load(trained).metrics["test_accuracy"]
