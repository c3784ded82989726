from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tiny_models import TABLE, expected_logits
from tritonclient.utils import InferenceServerException

from serving.local_server import Server

pytestmark = pytest.mark.live
TIMEOUT_S = 20.0


def pictures(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size=(count, 1, 28, 28), dtype=np.uint8)


def tensor(protocol: ModuleType, name: str, value: np.ndarray, dtype: str) -> object:
    each = protocol.InferInput(name, list(value.shape), dtype)
    each.set_data_from_numpy(value)
    return each


@pytest.fixture
def http_client(server: Server) -> Iterator[http.InferenceServerClient]:
    with http.InferenceServerClient(server.http_url, concurrency=8, network_timeout=TIMEOUT_S) as client:
        yield client


@pytest.fixture
def grpc_client(server: Server) -> Iterator[grpc.InferenceServerClient]:
    with grpc.InferenceServerClient(server.grpc_url) as client:
        yield client


@pytest.mark.parametrize("protocol", [http, grpc])
@pytest.mark.parametrize("count", [1, 7, 64])
def test_answers_are_the_expected_logits(request: pytest.FixtureRequest, protocol: ModuleType, count: int) -> None:
    client = request.getfixturevalue("http_client" if protocol is http else "grpc_client")
    images = pictures(count)
    answer = client.infer("linear", [tensor(protocol, "image", images, "UINT8")])
    np.testing.assert_allclose(answer.as_numpy("logits"), expected_logits(images), rtol=1e-5, atol=1e-4)


def test_only_requested_outputs_come(grpc_client: grpc.InferenceServerClient) -> None:
    images = pictures(2)
    wanted = grpc.InferRequestedOutput("total")
    inputs = [tensor(grpc, "image", images, "UINT8")]
    answer = grpc_client.infer("patient", inputs, outputs=[wanted], client_timeout=TIMEOUT_S)
    assert answer.as_numpy("logits") is None
    totals = images.reshape(2, -1).sum(axis=1, keepdims=True) / 255
    np.testing.assert_allclose(answer.as_numpy("total"), totals, rtol=1e-4)


def test_requests_in_one_batch_are_answered_as_alone(http_client: http.InferenceServerClient) -> None:
    parts = [pictures(count, seed=count) for count in (1, 2, 1, 3)]
    before = executions(http_client, "patient")
    pending = [http_client.async_infer("patient", [tensor(http, "image", part, "UINT8")]) for part in parts]
    for part, request in zip(parts, pending, strict=True):
        logits = request.get_result(timeout=TIMEOUT_S).as_numpy("logits")
        np.testing.assert_allclose(logits, expected_logits(part), rtol=1e-5, atol=1e-4)
    assert executions(http_client, "patient") - before < len(parts)


def test_bad_request_in_a_batch_fails_alone(http_client: http.InferenceServerClient) -> None:
    rows = [0, 99, 3, 1]
    before = executions(http_client, "table")
    pending = [http_client.async_infer("table", [tensor(http, "row", np.array([[row]]), "INT64")]) for row in rows]
    for row, request in zip(rows, pending, strict=True):
        if row == 99:
            with pytest.raises(InferenceServerException, match="indices element out of data bounds"):
                request.get_result(timeout=TIMEOUT_S)
        else:
            values = request.get_result(timeout=TIMEOUT_S).as_numpy("values")
            np.testing.assert_array_equal(values, TABLE[[[row]]])
    assert executions(http_client, "table") - before < len(rows)


def executions(client: http.InferenceServerClient, model: str) -> int:
    return int(client.get_inference_statistics(model)["model_stats"][0]["execution_count"])
