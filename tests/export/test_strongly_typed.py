"""Graphs in TensorRT's types: right within their precision, and in the form that its parser takes."""

import copy

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from tensorrt_operators import prepared_and_checked

from export.checkpoint_to_onnx import Form, export
from export.compare_logits import onnx_classifier
from export.precision import lowered
from models.catalog import shipped
from models.checkpoints.checkpoint import load
from models.data import load_digits

# Of the largest logit; measured on vitbn-tiny and cnn: bf16 0.017, int8 0.089; with int8 probabilities 0.18.
TOLERANCES = {"bf16": 0.02, "int8": 0.15}


@pytest.fixture(scope="module", params=["vitbn-tiny", "cnn"])
def proto(request: pytest.FixtureRequest) -> onnx.ModelProto:
    return onnx.load_from_string(export(load(shipped(request.param)), Form("all")).onnx)


@pytest.fixture(scope="module")
def typed(proto: onnx.ModelProto) -> dict[str, onnx.ModelProto]:
    images = load_digits().train_images
    return {precision: lowered(proto, precision, images, strongly_typed=True) for precision in TOLERANCES}


def error(proto: onnx.ModelProto, other: onnx.ModelProto) -> float:
    """Of the logits of 16 digits, relative to the largest."""
    images = load_digits().test_images[:16]
    expected = onnx_classifier(proto.SerializeToString())(images)
    (found,) = ReferenceEvaluator(other).run(None, {"image": images})
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("precision", TOLERANCES)
def test_a_typed_graph_answers_alike_and_is_taken(
    proto: onnx.ModelProto, typed: dict[str, onnx.ModelProto], precision: str
) -> None:
    found = typed[precision]
    assert error(proto, found) < TOLERANCES[precision]
    prepared_and_checked(found)
    types = {numpy_helper.to_array(tensor).dtype for tensor in found.graph.initializer}
    wanted = {"bf16": ml_dtypes.bfloat16, "int8": np.int8}[precision]
    assert np.dtype(wanted) in types


@pytest.mark.slow
def test_a_wrong_scale_is_seen(proto: onnx.ModelProto, typed: dict[str, onnx.ModelProto]) -> None:
    wrong = copy.deepcopy(typed["int8"])
    scales = {node.input[1] for node in wrong.graph.node if node.op_type == "QuantizeLinear"}
    for tensor in wrong.graph.initializer:
        if tensor.name in scales:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) / np.float32(8), tensor.name))
    assert not error(proto, wrong) <= TOLERANCES["int8"]  # NaN too
