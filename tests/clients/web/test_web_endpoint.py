import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from web_http import DIGIT, PNG, ask, check_raw, check_refusal, classify, listening, send_raw
from web_parts import Triton

from clients.classifier import Classifier, Options
from clients.preprocess import read_image, to_model_input
from clients.web import triton_requests
from clients.web.guards import HEADERS, RateLimit
from clients.web.routes import BODY_BYTES, HEADER_BYTES

pytestmark = pytest.mark.live

NOBODY = "127.0.0.1:1"


def test_the_models(address: str) -> None:
    status, headers, content = ask(address, "GET", "/api/models")
    answer = json.loads(content)
    assert (status, headers["cache-control"]) == (200, "no-store")
    assert [model["name"] for model in answer["models"]] == ["second", "vitbn"]
    assert answer["preferred"] == "second"
    assert all(model["test_accuracy"] > 0.95 and len(model["labels"]) == 10 for model in answer["models"])
    assert answer["accepts"]["bytes"] == BODY_BYTES


@pytest.mark.parametrize(("query", "model", "version"), [("?model=vitbn", "vitbn", "1"), ("", "second", "2")])
def test_an_image_is_answered_as_by_the_library(
    address: str, triton: Triton, query: str, model: str, version: str
) -> None:
    status, answer = classify(address, DIGIT, query)
    image = to_model_input(read_image(io.BytesIO(DIGIT)))
    with Classifier(Options(triton.url), model) as classifier:
        (expected,) = classifier.classify(image[None])
    assert status == 200
    assert (answer["label"], answer["model"], answer["version"]) == ("3", model, version)
    np.testing.assert_allclose(answer["probabilities"], expected.probabilities, atol=1e-6)
    assert answer["labels"] == list(expected.labels)
    np.testing.assert_array_equal(answer["image"], image[0])
    assert 0 < answer["inference_ms"] < 1e4
    assert 0 < answer["preparation_ms"] < 1e4


def test_simultaneous_requests_are_answered(address: str) -> None:
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(lambda number: classify(address, DIGIT), range(16)))
    assert [(status, answer["label"]) for status, answer in answers] == [(200, "3")] * 16


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("HEAD", "/", 200),
        ("GET", "/static/page.js", 200),
        ("GET", "/api/models", 200),
        ("GET", "/nothing", 404),
        ("GET", "/static/../app.py", 404),
        ("GET", "/api/classify", 405),
    ],
)
def test_every_answer_is_guarded(address: str, method: str, path: str, status: int) -> None:
    found, headers, content = ask(address, method, path)
    assert found == status
    assert {name.lower(): value for name, value in HEADERS.items()}.items() <= headers.items()
    assert "server" not in headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    if status >= 400:
        check_refusal(found, headers, content)


def test_what_is_no_image(address: str) -> None:
    blank = io.BytesIO()
    Image.new("L", (50, 50), 255).save(blank, "PNG")
    for body, status, found in [
        (b"", 400, "found an empty body"),
        (b"seven", 422, "no format that is read here"),
        (DIGIT[:1000], 422, "damaged file"),
        (blank.getvalue(), 422, "no ink found"),
    ]:
        refusal = classify(address, body)
        assert refusal[0] == status
        assert found in refusal[1]["error"]


@pytest.mark.parametrize("kind", ["", "text/plain", "image/svg+xml", "application/x-www-form-urlencoded", "image/png2"])
def test_another_content_type_is_refused(address: str, kind: str) -> None:
    answer = ask(address, "POST", "/api/classify", DIGIT, {"Content-Type": kind})
    assert answer[0] == 415
    assert f"found {kind!r}" in check_refusal(*answer)


@pytest.mark.parametrize(
    "name", ["resnet", "..", "../../v2/health/ready?", "vitbn/versions/1", "vitbn%0d%0a", "%ff", "é"]
)
def test_a_model_that_the_server_does_not_have(address: str, name: str) -> None:
    query = name if name.isascii() else "%C3%A9"
    answer = ask(address, "POST", f"/api/classify?model={query}", DIGIT, PNG)
    assert answer[0] == 404
    assert "model" in check_refusal(*answer)


def test_a_body_that_is_too_large_is_refused(address: str) -> None:
    head = b"POST /api/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    assert send_raw(address, head + b"Content-Length: %d\r\n\r\n" % 10**15).startswith(b"HTTP/1.1 413 ")
    for size in (BODY_BYTES + 1, 40 * 10**6):  # read to its end: else a browser shows a broken connection
        answer = ask(address, "POST", "/api/classify", bytes(size), PNG)
        assert (answer[0], check_refusal(*answer)) == (413, "expected a picture of at most 10 MB, found a larger body")
    status, headers, content = ask(address, "POST", "/api/classify", bytes(BODY_BYTES), PNG)
    assert (status, "no format" in check_refusal(status, headers, content)) == (422, True)
    chunk = b"%x\r\n%s\r\n" % (2**20, bytes(2**20))
    sent = send_raw(address, head + b"Transfer-Encoding: chunked\r\n\r\n" + 9 * chunk + b"0\r\n\r\n")
    assert sent.startswith(b"HTTP/1.1 422 ")


def test_headers_that_are_too_large(address: str) -> None:
    endless = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "
    refused = send_raw(address, endless + (HEADER_BYTES - len(endless)) * b"x")
    assert refused.split()[1] == b"431"
    check_raw(refused)


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"Host": "evil.example:8080"}, "Host"),
        ({"Host": "127.0.0.1.evil.example"}, "Host"),
        ({"Host": "127.0.0.1@evil.example"}, "Host"),
        ({"Host": "[::1"}, "Host"),
        ({"Host": ""}, "Host"),
        ({"Origin": "https://evil.example"}, "Origin"),
        ({"Origin": "null"}, "Origin"),
        ({"Origin": "http://localhost:3000", "Host": "localhost:8080"}, "Origin"),
        ({"Sec-Fetch-Site": "cross-site"}, "Sec-Fetch-Site"),
        ({"Sec-Fetch-Site": "same-site"}, "Sec-Fetch-Site"),
    ],
)
def test_the_page_of_another_site(address: str, headers: dict[str, str], named: str) -> None:
    for method, path in (("POST", "/api/classify"), ("GET", "/api/models")):
        answer = ask(address, method, path, DIGIT, {**PNG, **headers})
        assert answer[0] == 403
        assert check_refusal(*answer).startswith(f"{named}: expected")


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "LOCALHOST:9000", "Origin": "http://LOCALHOST:9000", "Sec-Fetch-Site": "same-origin"},
        {"Host": "localhost:9000", "Origin": "https://localhost:9000"},  # behind a proxy with TLS
        {"Host": "192.168.1.7"},
        {"Host": "[::1]:8080", "Origin": "http://[::1]:8080"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_the_page_itself_and_programs_are_answered(address: str, headers: dict[str, str]) -> None:
    status, answer = classify(address, DIGIT, **headers)
    assert (status, answer["label"]) == (200, "3")
    link = {"Sec-Fetch-Site": "cross-site"}
    assert ask(address, "GET", "/", None, link)[0] == 200, "a link to the page may stand anywhere"


def test_too_many_requests(triton: Triton) -> None:
    with listening(triton.url, RateLimit(rate_hz=0.01, burst=3)) as where:
        statuses = [ask(where, "GET", "/api/models")[0] for _ in range(3)]
        answer = ask(where, "POST", "/api/classify", DIGIT, PNG)
        assert (statuses, answer[0]) == ([200] * 3, 429)
        assert "next is answered in" in check_refusal(*answer)
        assert 90 <= int(answer[1]["retry-after"]) <= 100
        assert ask(where, "GET", "/")[0] == 200


def test_no_triton_server() -> None:
    with listening(NOBODY) as where:
        for answer in (ask(where, "GET", "/api/models"), ask(where, "POST", "/api/classify", DIGIT, PNG)):
            assert answer[0] == 503
            assert NOBODY in check_refusal(*answer)


def test_an_unexpected_exception_is_answered_as_json(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(triton_requests.Triton, "models", lambda self: 1 / 0)
    with listening(NOBODY) as where:
        status, headers, content = ask(where, "GET", "/api/models")
    assert (status, headers["content-type"]) == (500, "application/json")
    assert list(json.loads(content)) == ["error"]
    assert b"ZeroDivision" not in content
    assert "ZeroDivisionError" in caplog.text


def test_the_page_answers_without_its_preferred_model(triton: Triton) -> None:
    with listening(triton.url, model="resnet") as where:
        assert ask(where, "GET", "/api/models")[0] == 404
        assert classify(where, DIGIT, "?model=vitbn")[0] == 200


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
