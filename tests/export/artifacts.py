"""A graph with the same logits for all images, and plans of TensorRT."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx_text import parsed

from common.sample import Sample
from export.publishing.artifact import Artifact, classifier_artifact
from export.publishing.manifest import Network, Origin, Plan, Profile
from export.sample_images import embedded_sample
from models.networks.config import ModelConfig


def graph(config: ModelConfig, answer: Sequence[float], note: str = "") -> bytes:
    shape, classes = ", ".join(map(str, config.input_shape)), config.num_classes
    text = f"""constant (uint8[batch, {shape}] image) => (float[batch, {classes}] logits) {{
        count = Shape <start = 0, end = 1> (image) shape = Concat <axis = 0> (count, classes)
        logits = Expand (answer, shape)
    }}"""
    model = parsed(text, answer=np.array([answer], np.float32), classes=np.array([classes]))
    model.doc_string = note
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
