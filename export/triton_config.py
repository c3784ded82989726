"""Model configuration -> Triton's config.pbtxt, through Triton's own ModelConfig protobuf.

In: the name to serve under and the manifest of an export. Out: the text of config.pbtxt; each value has its reason.
Source: triton-inference-server/common, protobuf/model_config.proto.
"""

from __future__ import annotations

import json
from typing import Any

from models.config import INPUT_NAME, OUTPUT_NAME, ModelConfig

LABELS_FILE = "labels.txt"

# Larger batches are slower an image on a CPU (they leave the cache) and cost memory; clients split what is larger.
MAX_BATCH_SIZE = 256


def triton_config(name: str, config: ModelConfig, manifest: dict[str, Any]) -> str:
    """The text of config.pbtxt for an ONNX model served as `name`, complete: Triton has nothing to guess."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as pb

    message = pb.ModelConfig(
        name=name,
        backend="onnxruntime",
        max_batch_size=MAX_BATCH_SIZE,
        input=[pb.ModelInput(name=INPUT_NAME, data_type=pb.TYPE_UINT8, dims=config.input_shape)],
        output=[
            pb.ModelOutput(
                name=OUTPUT_NAME, data_type=pb.TYPE_FP32, dims=[config.num_classes], label_filename=LABELS_FILE
            )
        ],
        # KIND_AUTO runs on a GPU where there is one; one instance has all cores, two would share them.
        instance_group=[pb.ModelInstanceGroup(kind=pb.ModelInstanceGroup.KIND_AUTO, count=1)],
        # What has queued up while the instance was busy is answered together; none waits for more to come. No queue
        # policy: with one, Triton prepares no batch while its only instance works, and a request that comes just as
        # an answer leaves now and then sleeps for 500 ms.
        dynamic_batching=pb.ModelDynamicBatching(),
    )
    for key, value in _parameters(config, manifest).items():
        message.parameters[key].string_value = value
    text: str = text_format.MessageToString(message)
    return text


def _parameters(config: ModelConfig, manifest: dict[str, Any]) -> dict[str, str]:
    """A setting of the backend, and what a client or an operator asks for: the model and where it came from."""
    parameters = {
        # A memory pattern keeps a second copy of all activations for every batch size met, and is no faster.
        "enable_mem_pattern": "0",
        "model_config": config.to_json(),
        "rewrites": json.dumps(manifest["rewrites"]),
        "max_abs_error": f"{manifest['max_abs_error']:.3e}",
        "checkpoint_sha256": manifest["checkpoint_sha256"],
    }
    accuracy = manifest.get("test_accuracy", manifest["metrics"].get("test_accuracy"))
    return parameters if accuracy is None else parameters | {"test_accuracy": str(accuracy)}
