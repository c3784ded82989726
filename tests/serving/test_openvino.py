import importlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as http
from tiny_models import REFUSING, expected_logits, linear_model, write_model
from tritonclient.utils import InferenceServerException

from serving.local_server import running_server

pytestmark = pytest.mark.live
START_S = 120  # a dozen models
TIMEOUT_S = 60.0

FILE = 'default_model_filename: "model.onnx"'
INPUT = 'input [{ name: "image" data_type: TYPE_UINT8 dims: [-1, 1, 28, 28] }]'
OUTPUT = 'output [{ name: "logits" data_type: TYPE_FP32 dims: [-1, 10] label_filename: "labels.txt" }]'
WHOLE = f"{FILE} {INPUT} {OUTPUT}"
CPU = "instance_group [{ kind: KIND_CPU count: 1 }]"
BFLOAT16 = 'parameters { key: "HINT_BF16" value { string_value: "YES" } }'
# The shape is complete: there is no batch dimension. With another batch_size Triton 2.51 crashes.
WARM_UP = "".join(
    f'model_warmup [{{ name: "{count}" batch_size: 1 inputs {{ key: "image"'
    f" value {{ data_type: TYPE_UINT8 dims: [{count}, 1, 28, 28] zero_data: true }} }} }}]"
    for count in (1, 256)
)

ACCEPTED = {
    "float32": f"{WHOLE} {CPU}",
    "bfloat16": f"{WHOLE} {CPU} {BFLOAT16}",
    "warm": f"{WHOLE} {CPU} {WARM_UP} dynamic_batching {{ }}",
    "wide": f"{WHOLE.replace('28, 28]', '-1, -1]')} {CPU}",  # another size is the model's error
}
REFUSED = {
    "input_type": (WHOLE.replace("UINT8", "FP32"), "input 'image': config.pbtxt says TYPE_FP32, the model has TYPE_UI"),
    "threads": (
        f'{WHOLE} parameters {{ key: "INFERENCE_NUM_THREADS" value {{ string_value: "99999999999" }} }}',
        "OpenVINO cannot load the model: Wrong value for property key INFERENCE_NUM_THREADS",
    ),
    "file": (f"{INPUT} {OUTPUT}", "file/1/model.xml): the model file does not exist"),
    "corrupt": (WHOLE, "corrupt/1/model.onnx): OpenVINO cannot load the model: Unable to read the model"),
}
RANGE = 'input [{ name: "x" data_type: TYPE_FP32 dims: [-1] }] output [{ name: "y" data_type: TYPE_FP32 dims: [-1] }]'


def write_ir(repository: Path, name: str, size: object) -> None:
    """y = 2x in OpenVINO's own format."""
    openvino = importlib.import_module("openvino")
    operations = importlib.import_module("openvino.opset13")
    x = operations.parameter(openvino.PartialShape([size]), np.float32, name="x")
    x.output(0).set_names({"x"})
    y = operations.add(x, x)
    y.output(0).set_names({"y"})
    path = write_model(repository, name, config=f"{RANGE} {CPU}", filename="unused", backend="openvino")
    openvino.save_model(openvino.Model([y], [x], "double"), path.with_name("model.xml"))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[http.InferenceServerClient]:
    repository = tmp_path_factory.mktemp("openvino")
    for name, config in (ACCEPTED | {name: config for name, (config, _) in REFUSED.items()}).items():
        model = b"no protobuf at all" if name == "corrupt" else linear_model(size="size" if name == "wide" else 28)
        write_model(repository, name, model, config, backend="openvino")
    write_ir(repository, "open", -1)
    write_ir(repository, "range", importlib.import_module("openvino").Dimension(1, 5))
    with running_server(repository, REFUSING, START_S) as server:
        timeouts = {"network_timeout": TIMEOUT_S, "connection_timeout": TIMEOUT_S}
        with http.InferenceServerClient(server.http_url, concurrency=4, **timeouts) as http_client:
            yield http_client


def ask(client: http.InferenceServerClient, model: str, images: np.ndarray) -> http.InferAsyncRequest:
    image = http.InferInput("image", list(images.shape), "UINT8")
    image.set_data_from_numpy(images)
    return client.async_infer(model, [image], outputs=[http.InferRequestedOutput("logits")])


def pictures(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, size=shape, dtype=np.uint8)


def index(client: http.InferenceServerClient, name: str) -> dict[str, str]:
    return next(entry for entry in client.get_model_repository_index() if entry["name"] == name)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(client: http.InferenceServerClient, name: str) -> None:
    assert index(client, name)["state"] == "UNAVAILABLE"
    assert REFUSED[name][1] in index(client, name)["reason"]


def test_dimension_with_a_range_is_refused(client: http.InferenceServerClient) -> None:
    assert index(client, "open")["state"] == "READY"
    assert "'x': its shape [1..5] has a range, which is not supported" in index(client, "range")["reason"]


@pytest.mark.parametrize("count", [1, 7, 300])
def test_values_for_any_number_of_images(client: http.InferenceServerClient, count: int) -> None:
    images = pictures(count, 1, 28, 28)
    logits = ask(client, "float32", images).get_result(timeout=TIMEOUT_S).as_numpy("logits")
    np.testing.assert_allclose(logits, expected_logits(images), rtol=1e-5, atol=1e-4)


def test_bfloat16_is_used_where_asked_for(client: http.InferenceServerClient) -> None:
    if "BF16" not in importlib.import_module("openvino").Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this CPU has no bfloat16")
    images = pictures(64, 1, 28, 28)
    logits = ask(client, "bfloat16", images).get_result(timeout=TIMEOUT_S).as_numpy("logits")
    error = np.abs(logits - expected_logits(images)).max()
    assert 1e-3 < error < 1  # eight bits of mantissa, on logits of about 30


def test_warm_up_runs_before_any_request_and_requests_do_not_meet(client: http.InferenceServerClient) -> None:
    def executions() -> int:
        return int(client.get_inference_statistics("warm")["model_stats"][0]["execution_count"])

    before = executions()
    assert before >= 2
    parts = [pictures(count, 1, 28, 28) for count in (1, 1, 3)]
    for part, pending in zip(parts, [ask(client, "warm", part) for part in parts], strict=True):
        logits = pending.get_result(timeout=TIMEOUT_S).as_numpy("logits")
        np.testing.assert_allclose(logits, expected_logits(part), rtol=1e-5, atol=1e-4)
    assert executions() == before + len(parts)


def test_bad_request_fails_alone(client: http.InferenceServerClient) -> None:
    shapes = [(2, 1, 28, 28), (1, 1, 28, 29), (3, 1, 28, 28)]
    good, bad, other = [ask(client, "wide", pictures(*shape)) for shape in shapes]
    with pytest.raises(InferenceServerException, match=r"\(1\.1\.28\.29\) conflicts with the reshape pattern"):
        bad.get_result(timeout=TIMEOUT_S)
    for pending, shape in ((good, shapes[0]), (other, shapes[2])):
        logits = pending.get_result(timeout=TIMEOUT_S).as_numpy("logits")
        np.testing.assert_allclose(logits, expected_logits(pictures(*shape)), rtol=1e-5, atol=1e-4)
