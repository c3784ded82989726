"""A graph that no server reads, and plans of TensorRT."""

import json
from dataclasses import replace

from export.publishing.artifact import Artifact
from models.config import ModelConfig


def artifact_of(config: ModelConfig = ModelConfig(), data: bytes = b"graph" * 100_000) -> Artifact:  # noqa: B008
    manifest = {
        "model_config": json.loads(config.to_json()),
        "rewrites": ["fold_batchnorm"],
        "max_abs_error": 1e-6,
        "tolerance": 1e-4,
        "checkpoint_sha256": "0",
        "metrics": {"test_accuracy": 0.98},
    }
    return Artifact(config, manifest, "model.onnx", data)


ARTIFACT = artifact_of()


def engine(smallest: int, largest: int) -> Artifact:
    profile = {"min": smallest, "opt": smallest, "max": largest}
    return replace(ARTIFACT, manifest=ARTIFACT.manifest | {"engine": {"profile": profile}}, file_name="model.plan")
