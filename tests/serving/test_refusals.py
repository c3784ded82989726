"""What the backends refuse, in this process; test_unloading.py shows that Triton tells the reason."""

import importlib
import json
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from backends import imported
from google.protobuf import json_format, text_format
from tiny_models import IMAGE, LOGITS, OPEN, linear_model, open_model, write_ir, write_model
from tritonclient.grpc import model_config_pb2 as pb


@dataclass(frozen=True)
class Case:
    """`reason` is a part of the refusal; "": it loads."""

    config: str
    reason: str
    model: onnx.ModelProto | bytes | None = None
    filename: str = "model.onnx"
    backend: str = "onnxruntime"


def parameter(key: str, value: str) -> str:
    return f'{WHOLE} parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


OF_OTHERS = r"{\"mask\": \"mask\", \"inputs\": [\"mask\"], \"outputs\": [], \"left\": false, \"features\": 1}"


def image(text: str) -> str:
    return f'max_batch_size: 8 input [{{ name: "image" {text} }}] {LOGITS}'


def logits(text: str) -> str:
    return f'max_batch_size: 8 {IMAGE} output [{{ name: "logits" {text} }}]'


WHOLE = f"max_batch_size: 8 {IMAGE} {LOGITS}"
SECOND_INPUT = 'input [{ name: "extra" data_type: TYPE_UINT8 dims: [1] }]'
SHAPE = r"[-1, 1, 28, 28]"
CASES = {
    "input_name": Case(
        WHOLE.replace('"image"', '"picture"'), "config.pbtxt has input 'picture', the model has 'image'"
    ),
    "input_count": Case(
        f"{WHOLE} {SECOND_INPUT}", "config.pbtxt has 2 inputs ('extra', 'image'), the model has 1 ('image')"
    ),
    "input_type": Case(
        image("data_type: TYPE_FP32 dims: [1, 28, 28]"),
        "input 'image': config.pbtxt says TYPE_FP32, the model has TYPE_UINT8",
    ),
    "input_shape": Case(
        image("data_type: TYPE_UINT8 dims: [1, 32, 32]"),
        f"input 'image': config.pbtxt says shape [-1, 1, 32, 32] (with the batch dimension), the model has {SHAPE}",
    ),
    "input_rank": Case(
        image("data_type: TYPE_UINT8 dims: [28, 28]"),
        f"input 'image': config.pbtxt says shape [-1, 28, 28] (with the batch dimension), the model has {SHAPE}",
    ),
    "input_open": Case(
        image("data_type: TYPE_UINT8 dims: [1, -1, -1]"),
        f"input 'image': config.pbtxt says shape [-1, 1, -1, -1] (with the batch dimension), the model has {SHAPE}",
    ),
    "output_shape": Case(
        logits("data_type: TYPE_FP32 dims: [26]"),
        "output 'logits': config.pbtxt says shape [-1, 26] (with the batch dimension), the model has [-1, 10]",
    ),
    "output_open": Case(
        logits("data_type: TYPE_FP32 dims: [-1]"),
        "output 'logits': config.pbtxt says shape [-1, -1] (with the batch dimension), the model has [-1, 10]",
    ),
    "output_open_in_model": Case(
        logits("data_type: TYPE_FP32 dims: [1, 28, 28]"),
        f"output 'logits': config.pbtxt says shape {SHAPE} (with the batch dimension), the model has [-1, 1, -1, -1]",
        open_model(),
    ),
    "fixed_batch": Case(
        WHOLE,
        "max_batch_size above 0 needs a dynamic first dimension, the model has [4, 1, 28, 28]",
        linear_model(batch=4),
    ),
    "threads": Case(
        parameter("intra_op_thread_count", "many"),
        "parameter 'intra_op_thread_count': expected an integer, found 'many'",
    ),
    "mode": Case(parameter("execution_mode", "2"), "parameter 'execution_mode': expected 0 or 1, found 2"),
    "arena": Case(
        parameter("enable_mem_arena", "maybe"), "parameter 'enable_mem_arena': expected true or false, found 'maybe'"
    ),
    "inner_batch": Case(parameter("inner_batch", "-1"), "expected at least 0, found -1"),
    "lone_rows": Case(parameter("lone_rows", "-1"), "parameter 'lone_rows': expected at least 0, found -1"),
    "lengths": Case(
        parameter("joined_lengths", "[]"), "parameter 'joined_lengths': expected what a publication writes"
    ),
    "lengths_of_others": Case(parameter("joined_lengths", OF_OTHERS), "expected tensors of the model, found 'mask'"),
    "shared": Case(parameter("share_session_between_instances", "2"), "expected true or false, found '2'"),
    "accelerator": Case(
        f'{WHOLE} optimization {{ execution_accelerators {{ cpu_execution_accelerator: [{{ name: "magic" }}] }} }}',
        "unknown execution accelerator 'magic' is requested",
    ),
    "ragged": Case(WHOLE.replace("dims: [1, 28, 28]", "dims: [1, 28, 28] allow_ragged_batch: true"), "is ragged"),
    "corrupt": Case(WHOLE, "/1/model.onnx): ONNX Runtime cannot read the model", b"no protobuf at all"),
    "missing": Case(WHOLE, "/1/model.onnx): the model file does not exist", filename="other.onnx"),
    "other_file": Case(f'{WHOLE} default_model_filename: "other.onnx"', "", filename="other.onnx"),
    "fixed_by_config": Case(WHOLE, "", linear_model(size="size")),
    "openvino_input_type": Case(
        OPEN.replace("UINT8", "FP32"),
        "input 'image': config.pbtxt says TYPE_FP32, the model has TYPE_UINT8",
        backend="openvino",
    ),
    "openvino_threads": Case(
        f'{OPEN} parameters {{ key: "INFERENCE_NUM_THREADS" value {{ string_value: "99999999999" }} }}',
        "OpenVINO cannot load the model: Wrong value for property key INFERENCE_NUM_THREADS",
        backend="openvino",
    ),
    "openvino_file": Case(
        OPEN.replace("default_model_filename", "name"),
        "/1/model.xml): the model file does not exist",
        backend="openvino",
    ),
    "openvino_corrupt": Case(
        OPEN,
        "/1/model.onnx): OpenVINO cannot load the model: Unable to read the model",
        b"no protobuf",
        backend="openvino",
    ),
}


class Refused(Exception):
    """In place of the exception that only Triton's stub has."""


def load(repository: Path, name: str, config: str, engine: str) -> object:
    """The engine of a model of the repository."""
    message = text_format.Parse(config, pb.ModelConfig())
    options = {"preserving_proto_field_name": True, "always_print_fields_with_no_presence": True}
    args = {"model_config": json.dumps(json_format.MessageToDict(message, **options)), "model_name": name}
    args |= {"model_repository": str(repository / name), "model_version": "1"}
    args |= {"model_instance_kind": "CPU", "model_instance_device_id": "0"}
    with imported(engine) as module, pytest.MonkeyPatch.context() as patch:
        engine_backend = importlib.import_module("serving.backends.engine_backend")
        patch.setattr(engine_backend.pb_utils, "TritonModelException", Refused, raising=False)
        (backend := module.TritonPythonModel()).initialize(args)
        return backend.engine


@pytest.mark.parametrize("name", CASES)
def test_refused_with_a_reason_or_loaded(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    write_model(tmp_path, name, case.model, case.config, case.filename, case.backend)
    if not case.reason:
        assert load(tmp_path, name, case.config, case.backend)
        return
    with pytest.raises(Refused, match=r"^unable to load model") as refused:
        load(tmp_path, name, case.config, case.backend)
    assert case.reason in str(refused.value)


def test_a_dimension_with_a_range_is_refused(tmp_path: Path) -> None:
    openvino = importlib.import_module("openvino")
    assert load(tmp_path, "open", write_ir(tmp_path, "open", -1), "openvino")
    with pytest.raises(Refused, match=r"'x': its shape \[1\.\.5\] has a range, which is not supported"):
        load(tmp_path, "range", write_ir(tmp_path, "range", openvino.Dimension(1, 5)), "openvino")
