from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from networks import FAMILIES, SMALLEST, VARIANT, rewritten
from onnx import TensorProto, helper, numpy_helper
from tensorrt_operators import check, prepared_and_checked

from export.checkpoint_to_onnx import Form
from export.compare_logits import onnx_classifier
from export.engines.tensorrt_engine import EngineError, prepare
from export.precision import to_fp16, to_int8
from export.sample_images import embedded_sample
from models.data import load_digits
from models.networks.config import MODEL_NAMES, ModelConfig

REWRITTEN = (*FAMILIES, "cnn", "dnnbn")
CONFIGS = SMALLEST | {name: ModelConfig(model=name) for name in ("cnn", "dnn", "dnnbn")}


def exported(config: ModelConfig, rewrites: str, opset: int = 20) -> onnx.ModelProto:
    return rewritten(config, Form(rewrites, opset=opset))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "rewrites"), [*((model, "none") for model in MODEL_NAMES), *((model, "all") for model in REWRITTEN)]
)
def test_the_parser_takes_every_network(model: str, rewrites: str) -> None:
    proto = exported(CONFIGS[model], rewrites)
    prepared = prepared_and_checked(proto)
    assert [node.op_type for node in prepared.graph.node if "image" in node.input] == ["Cast"]
    expected, found = (onnx_classifier(graph.SerializeToString()) for graph in (proto, prepared))
    images = embedded_sample(CONFIGS[model]).images[:5]
    assert np.array_equal(expected(images), found(images))


@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 21])
@pytest.mark.parametrize("rewrites", ["bn", "all"])
def test_the_parser_takes_every_opset_and_rewrite(opset: int, rewrites: str) -> None:
    prepared_and_checked(exported(VARIANT, rewrites, opset))


@pytest.mark.slow
@pytest.mark.parametrize("model", REWRITTEN)
def test_the_parser_takes_float16_graphs(model: str) -> None:
    lowered = to_fp16(exported(CONFIGS[model], "all"))
    prepared = prepared_and_checked(lowered)
    casts = [node for node in prepared.graph.node if "image" in node.input]
    assert [(node.op_type, node.attribute[0].i) for node in casts] == [("Cast", TensorProto.FLOAT16)]


@pytest.mark.slow
def test_int8_of_a_cpu_is_refused() -> None:
    lowered = to_int8(exported(CONFIGS["cnn"], "all"), load_digits().train_images)
    with pytest.raises(EngineError, match=r"QuantizeLinear\): expected a type of .*_zero_point that .* found UINT8$"):
        prepared_and_checked(lowered)


def graph(
    nodes: Sequence[onnx.NodeProto], opset: int = 20, image: int = TensorProto.UINT8, **constants: np.ndarray
) -> onnx.ModelProto:
    """uint8 `image` (batch, 1, 28, 28) -> float32 `logits`, with `nodes` between."""
    inputs = [helper.make_tensor_value_info("image", image, ["batch", 1, 28, 28])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "c", "h", "w"])]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    return helper.make_model(
        helper.make_graph(list(nodes), "g", inputs, outputs, weights), opset_imports=[helper.make_opsetid("", opset)]
    )


CAST = helper.make_node("Cast", ["image"], ["x"], "cast", to=TensorProto.FLOAT)
AXES = np.array([1, 2], np.int64)
SHAPE = np.array([-1, 784], np.int64)
MEAN = helper.make_node("ReduceMean", ["x", "axes"], ["logits"], "mean")


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (graph([CAST, MEAN], opset=25, axes=AXES), "ONNX: expected opset 9 to 24, found 25"),
        (
            graph([CAST, helper.make_node("Det", ["x"], ["logits"], "determinant")]),
            r"ONNX node determinant \(Det\): expected an operator that TensorRT takes, found Det",
        ),
        (
            graph(
                [
                    helper.make_node("Reshape", ["image", "shape"], ["flat"], "flatten"),
                    helper.make_node("Cast", ["flat"], ["logits"], "cast", to=TensorProto.FLOAT),
                ],
                shape=SHAPE,
            ),
            r"ONNX node flatten \(Reshape\): expected a type of image that TensorRT's Reshape takes, found UINT8",
        ),
        (
            graph([CAST, helper.make_node("Shape", ["x"], ["axes"], "axes of its own", start=2), MEAN]),
            "node mean .*expected constant axes, found axes, which is computed",
        ),
    ],
    ids=["opset", "operator", "uint8 first reshaped", "axes"],
)
def test_graphs_that_the_parser_refuses(proto: onnx.ModelProto, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        check(proto)


def test_a_shape_is_asked_of_the_cast_image_alone() -> None:
    shape = helper.make_node("Shape", ["image"], ["sides"], "ask")
    expand = helper.make_node("Expand", ["one", "sides"], ["logits"], "expand")
    proto = graph([shape, CAST, expand], one=np.ones((1, 1, 1, 1), np.float32))
    with pytest.raises(EngineError, match=r"node ask .*expected a type of image .*found UINT8"):
        check(proto)
    assert [node.name for node in prepare(proto).graph.node] == ["cast", "ask", "expand"]


def test_a_graph_that_is_not_valid() -> None:
    proto = graph([helper.make_node("Add", ["missing", "image"], ["logits"], "sum")], image=TensorProto.FLOAT)
    with pytest.raises(EngineError, match="ONNX"):
        prepared_and_checked(proto)
    twice = [CAST, CAST, helper.make_node("Relu", ["x"], ["logits"], "relu")]
    with pytest.raises(EngineError, match=r"expected a valid graph, found .*single static assignment"):
        prepare(graph(twice))
