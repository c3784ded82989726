import importlib
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as http
from tiny_models import OPEN, expected_logits, linear_model, write_model
from tritonclient.utils import InferenceServerException

from serving.local_server import running_server

pytestmark = pytest.mark.live
START_S = 120
TIMEOUT_S = 60.0

CPU = "instance_group [{ kind: KIND_CPU count: 1 }]"
BFLOAT16 = 'parameters { key: "HINT_BF16" value { string_value: "YES" } }'
# The shape is complete: there is no batch dimension. With another batch_size Triton 2.51 crashes.
WARM_UP = "".join(
    f'model_warmup [{{ name: "{count}" batch_size: 1 inputs {{ key: "image"'
    f" value {{ data_type: TYPE_UINT8 dims: [{count}, 1, 28, 28] zero_data: true }} }} }}]"
    for count in (1, 256)
)

ACCEPTED = {
    "float32": f"{OPEN} {CPU}",
    "bfloat16": f"{OPEN} {CPU} {BFLOAT16}",
    "warm": f"{OPEN} {CPU} {WARM_UP} dynamic_batching {{ }}",
    "wide": f"{OPEN.replace('28, 28]', '-1, -1]')} {CPU}",  # another size is the model's error
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[http.InferenceServerClient]:
    repository = tmp_path_factory.mktemp("openvino")
    for name, config in ACCEPTED.items():
        model = linear_model(size="size" if name == "wide" else 28)
        write_model(repository, name, model, config, backend="openvino")
    with running_server(repository, ["--disable-auto-complete-config"], START_S) as server:
        timeouts = {"network_timeout": TIMEOUT_S, "connection_timeout": TIMEOUT_S}
        with http.InferenceServerClient(server.http_url, concurrency=4, **timeouts) as http_client:
            yield http_client


def ask(client: http.InferenceServerClient, model: str, images: np.ndarray) -> http.InferAsyncRequest:
    image = http.InferInput("image", list(images.shape), "UINT8")
    image.set_data_from_numpy(images)
    return client.async_infer(model, [image], outputs=[http.InferRequestedOutput("logits")])


def pictures(*shape: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, size=shape, dtype=np.uint8)


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
