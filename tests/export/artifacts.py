"""A graph with the same logits for all images, and plans of TensorRT."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from common.sample import Sample
from export.images import embedded_sample
from export.publishing.artifact import Artifact, classifier_artifact
from export.publishing.manifest import Network, Origin, Plan, Profile
from models.networks.config import ModelConfig


def graph(config: ModelConfig, answer: Sequence[float], note: str = "") -> bytes:
    nodes = [
        helper.make_node("Shape", ["image"], ["batch"], start=0, end=1),
        helper.make_node("Concat", ["batch", "classes"], ["shape"], axis=0),
        helper.make_node("Expand", ["answer", "shape"], ["logits"]),
    ]
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", *config.input_shape])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", config.num_classes])
    constants = {"answer": np.array([answer], np.float32), "classes": np.array([config.num_classes])}
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    whole = helper.make_graph(nodes, "constant", [image], [logits], tensors)
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", 20)], ir_version=9, doc_string=note)
    data: bytes = model.SerializeToString()
    return data


def artifact_of(
    config: ModelConfig = ModelConfig(),  # noqa: B008
    answer: Sequence[float] = tuple(range(10)),
    note: str = "",
    file: str = "model.onnx",
    origin: Origin = Origin(("fold-affine",)),  # noqa: B008
    **network: Any,
) -> Artifact:
    """`network`: other fields of the trained network than the usual."""
    usual: dict[str, Any] = {
        "checkpoint_sha256": "0",
        "metrics": {"test_accuracy": 0.98},
        "max_abs_error": 1e-6,
        "tolerance": 1e-4,
    }
    sample = Sample({"image": embedded_sample(config).images[:1]}, {"logits": np.array([answer], np.float32)})
    return classifier_artifact(file, graph(config, answer, note), Network(config, **usual | network), sample, origin)


ARTIFACT = artifact_of()


def engine(smallest: int, largest: int) -> Artifact:
    plan = Plan(Profile(smallest, smallest, largest), max_abs_error=0.004)
    return artifact_of(file="model.plan", origin=Origin(("fold-affine",), engine=plan))
