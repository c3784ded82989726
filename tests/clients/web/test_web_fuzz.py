from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from web_http import ask, check_raw, send_raw

pytestmark = pytest.mark.live

FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT", "get", "Ä"]
TARGETS = ["#", "//evil.example", "/api//models", "/static/..%2f..%2fapp.py", "*", "/?model=\x00"]
NAMES = ["Content-Type", "Content-Length", "Host", "Origin", "Sec-Fetch-Site", "Range", "If-None-Match", "Cookie"]
NAMES += ["Transfer-Encoding", "Expect", "Connection", "X-Forwarded-For", "Content-Encoding", "If-Modified-Since"]


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [record.getMessage() for record in caplog.get_records("call")] == []


header_text = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=60)

quoted = st.binary(max_size=40).map(lambda raw: "/" + "".join(f"%{byte:02x}" for byte in raw))


@FUZZ
@given(
    name=st.sampled_from(NAMES),
    value=header_text,
    path=st.sampled_from(["/", "/api/models", "/api/classify", "/static/page.js"]),
)
def test_any_header(address: str, quiet: None, name: str, value: str, path: str) -> None:
    head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{name}: {value}\r\n\r\n"
    check_raw(send_raw(address, head.encode("latin-1")))


@FUZZ
@example(method="GET", target="#")
@given(
    method=st.sampled_from(METHODS),
    target=st.one_of(header_text, quoted, st.sampled_from(TARGETS)),
)
def test_any_target(address: str, quiet: None, method: str, target: str) -> None:
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    received = send_raw(address, head.encode("latin-1"))
    assert received
    check_raw(received, head_only=method == "HEAD")


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"POST /api/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nshort", None),
        (b"POST /api/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /api/classify HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST /api/classify HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: localhost\n\n", None),
        (b"GET / HTTP/1.0\r\n\r\n", 403),
    ],
)
def test_what_is_no_request(address: str, quiet: None, content: bytes, status: int | None) -> None:
    received = send_raw(address, content)
    assert received.split()[1:2] == ([] if status is None else [b"%d" % status])
    check_raw(received)
    assert ask(address, "GET", "/")[0] == 200
