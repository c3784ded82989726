from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
import tritonclient.http as http
from tiny_models import IMAGE, LOGITS, ONE_INSTANCE, REFUSING, check_answers, linear_model, open_model, write_model

from serving.local_server import running_server

pytestmark = pytest.mark.live


@dataclass(frozen=True)
class Case:
    """`reason` is a part of the refusal; None: it loads."""

    config: str
    reason: str | None
    model: onnx.ModelProto | bytes | None = None
    filename: str = "model.onnx"


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
    "corrupt": Case(WHOLE, "corrupt/1/model.onnx): ONNX Runtime cannot read the model", b"no protobuf at all"),
    "missing": Case(WHOLE, "missing/1/model.onnx): the model file does not exist", filename="other.onnx"),
    "other_file": Case(f'{WHOLE} default_model_filename: "other.onnx"', None, filename="other.onnx"),
    "fixed_by_config": Case(WHOLE, None, linear_model(size="size")),
    "fixed_whole": Case(
        'max_batch_size: 0 input [{ name: "image" data_type: TYPE_UINT8 dims: [4, 1, 28, 28] }]'
        ' output [{ name: "logits" data_type: TYPE_FP32 dims: [4, 10] }]',
        None,
        linear_model(batch=4),
    ),
    "reshaped": Case(image("data_type: TYPE_UINT8 dims: [28, 28] reshape { shape: [1, 28, 28] }"), None),
}
if not Path("/dev/nvidiactl").exists():
    CASES["gpu"] = Case(f"{WHOLE} instance_group [{{ kind: KIND_GPU count: 1 }}]", "kind KIND_GPU")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[http.InferenceServerClient]:
    repository = tmp_path_factory.mktemp("refusals")
    for name, case in CASES.items():
        write_model(repository, name, case.model, f"{case.config} {ONE_INSTANCE}", case.filename)
    with running_server(repository, REFUSING) as server, http.InferenceServerClient(server.http_url) as http_client:
        yield http_client


@pytest.fixture(scope="module")
def index(client: http.InferenceServerClient) -> dict[str, dict[str, str]]:
    return {entry["name"]: entry for entry in client.get_model_repository_index()}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.reason])
def test_refused_with_a_reason(index: dict[str, dict[str, str]], name: str) -> None:
    assert index[name]["state"] == "UNAVAILABLE"
    assert CASES[name].reason in index[name]["reason"]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.reason])
def test_a_supported_configuration_loads(index: dict[str, dict[str, str]], name: str) -> None:
    assert index[name]["state"] == "READY", index[name].get("reason")


@pytest.mark.parametrize(("name", "shape"), [("reshaped", (3, 28, 28)), ("fixed_whole", (4, 1, 28, 28))])
def test_accepted_shape_is_served(client: http.InferenceServerClient, name: str, shape: tuple[int, ...]) -> None:
    check_answers(client, name, shape)
