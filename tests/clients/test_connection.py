import asyncio
import gzip
import socket
import threading
import time
import urllib.request
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
from raw_server import answering, reply
from stand_in import StandIn, expected_logits

from clients.classifier import (
    Classifier,
    DeadlineExceeded,
    ModelNotFound,
    Options,
    ServerError,
    ServerUnavailable,
    list_models,
)

PROTOCOLS = ["http", "grpc"]
IMAGES = np.random.default_rng(0).integers(0, 256, (9, 1, 28, 28), dtype=np.uint8)


@contextmanager
def sending(*pieces):
    """Options of a server that sends these to any request."""
    with answering(lambda path: pieces) as url:
        yield partial(Options, url, retry_s=0)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_that_never_answers(protocol):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(DeadlineExceeded, match=r"did not answer within 0\.3 s"):
            Classifier(Options(url, protocol, timeout_s=0.3))


def test_a_server_that_answers_drop_by_drop_meets_the_same_deadline():
    def drops(path):
        yield reply(b"", length=1000)
        for _ in range(100):
            yield b"["
            time.sleep(0.1)

    start = time.monotonic()
    with answering(drops) as url, pytest.raises(DeadlineExceeded, match=r"within 0\.5 s"):
        Classifier(Options(url, timeout_s=0.5))
    assert time.monotonic() - start < 8


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("sent", [b"", b"hello\r\n\r\n", reply(b"<a>"), reply(b"<html>none</html>", "404 Not Found")])
def test_a_server_that_is_not_triton(protocol, sent):
    with sending(sent) as options, pytest.raises(ServerUnavailable, match="no Triton server answers"):
        Classifier(options(protocol, timeout_s=5))


@pytest.mark.parametrize("body", [b"{}", b"7", b"null", b'["net"]', b'[{"state": "READY"}]', b'[{"name": 7}]'])
def test_json_that_is_not_tritons_is_refused(body):
    with sending(reply(body)) as options, pytest.raises(ServerUnavailable, match="no Triton server answers"):
        list_models(options())


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (reply(b"[]"), "expected a version, and logits that fit their shape"),
        (reply(b'{"error": "no logits"}'), "expected a version, and logits that fit their shape"),
        (reply(b'{"model_version": "1", "outputs": [{"name": "logits", "datatype": "FP32"}]}'), "found another answer"),
        (reply(b"[" * 2000), "not Triton's"),
        (reply(b"seven", header="Content-Encoding: deflate\r\n"), "not Triton's"),
        (reply(gzip.compress(b"7", mtime=0)[:-9], header="Content-Encoding: gzip\r\n"), "not Triton's"),
        (reply(b"<p>Too large", "413 No"), r"\(HTTP 413, <p>Too large\)"),
        (reply(b"\xff", "400 No"), r"\(HTTP 400\)"),
        (reply(b'{"error": 7}', "400 No"), "answered: 7"),
    ],
)
def test_an_answer_that_a_proxy_has_changed_is_refused_in_words(answer, found):
    def through_proxy(path):
        if path.endswith("/infer"):
            return [answer]
        with urllib.request.urlopen(f"http://{server.url}{path}") as unchanged:
            return [reply(unchanged.read())]

    with (
        StandIn().serving("http") as server,
        answering(through_proxy) as url,
        Classifier(Options(url, retry_s=10), "net") as classifier,  # the proxy closes its connections
        pytest.raises((ServerError, ServerUnavailable), match=found),
    ):
        classifier.logits(IMAGES)


@pytest.mark.parametrize("status", ["302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
def test_no_redirect_is_followed(status):
    asked = []
    with answering(lambda path: asked.append(path) or [reply(b"[]")]) as elsewhere:
        moved = reply(b"", status, f"Location: http://{elsewhere}/v2\r\n")
        with sending(moved) as options, pytest.raises(ServerUnavailable, match="the answer there is not Triton's"):
            list_models(options(headers={"x-api-key": "secret"}))
    assert asked == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_lists_models_where_a_loop_runs_as_in_a_notebook(protocol):
    async def cell():
        return list_models(server.options())

    with StandIn().serving(protocol) as server:
        assert [model.name for model in asyncio.run(cell())] == ["net"]


@pytest.mark.parametrize(
    ("status", "kind"), [("403 Forbidden", ServerError), ("404 Not Found", ModelNotFound), ("500 No", ServerError)]
)
def test_a_refusal_keeps_the_words_of_the_server_on_one_line(status, kind):
    words = reply(b'{"error":"This protocol\\n is restricted %s"}' % (b"x" * 2000), status)
    answered = r"answered: This protocol is restricted x+ …$"
    with sending(words) as options, pytest.raises(kind, match=answered) as raised:
        Classifier(options())
    assert len(str(raised.value)) < 700
    with sending(reply(b"", status)) as options, pytest.raises(kind, match=rf"answered: HTTP {status[:3]}$"):
        Classifier(options())


@contextmanager
def asking(protocol, before=lambda number: None, **options):
    with (
        StandIn(before).serving(protocol) as server,
        Classifier(server.options(**options)) as classifier,
    ):
        yield server, classifier


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_a_busy_server_refuses_is_asked_again(protocol):
    refusals = {1: "too busy", 2: "too busy", 4: "still busy"}
    with asking(protocol, refusals.get, concurrency=1, batch_size=4, retry_s=10) as (server, classifier):
        np.testing.assert_array_equal(classifier.logits(IMAGES), expected_logits(IMAGES))
    assert server.batches == [4, 4, 4, 4, 1, 1]


def test_retries_slow_down_and_end():
    times = []

    def refuse(number):
        times.append(time.monotonic())
        return "Exceeds maximum queue size"

    with asking("http", refuse, retry_s=1.0) as (_, classifier):
        start = time.monotonic()
        with pytest.raises(ServerUnavailable, match=r"is too busy: Exceeds maximum queue size$"):
            classifier.classify(IMAGES[:1])
    assert 0.3 < times[-1] - start < 5
    # Pauses of 0.05 to 0.8 s, each shortened by up to half: 3 to 5 fit into a second, fewer on a busy machine.
    assert 2 <= len(times) <= 6
    assert times[-1] - times[-2] > 0.05


def test_the_deadline_holds_for_all_tries_together():
    def refuse_slowly(number):
        time.sleep(0.15)
        return "busy"

    with asking("http", refuse_slowly, timeout_s=2.0, retry_s=60) as (server, classifier):
        start = time.monotonic()
        with pytest.raises(
            (ServerUnavailable, DeadlineExceeded), match=r"is unavailable: busy|did not answer within 2 s"
        ):
            classifier.classify(IMAGES[:1])
        assert time.monotonic() - start < 10
    assert len(server.batches) > 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_server_that_starts_late_is_waited_for(protocol):
    """By default over three seconds."""
    pause_s, options = (3.0, {}) if protocol == "http" else (0.4, {"retry_s": 30})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    found = []

    def ask():
        with Classifier(Options(address, protocol, **options)) as classifier:
            found.append(classifier.logits(IMAGES))

    thread = threading.Thread(target=ask)
    thread.start()
    time.sleep(pause_s)
    assert thread.is_alive()
    with StandIn().serving(protocol, address):
        thread.join(30)
    np.testing.assert_array_equal(found[0], expected_logits(IMAGES))


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"retry_s": -1},
        {"protocol": "smtp"},
        {"concurrency": 0},
        {"batch_size": 0},
        {"headers": {"a b": "c"}},
        {"headers": {"a": "b\r\nc: d"}},
        {"headers": {"Transfer-Encoding": "chunked"}},
    ],
)
def test_invalid_options_are_refused(options):
    with pytest.raises(ValueError, match="expected"):
        Classifier(Options("127.0.0.1:1", **options))


@pytest.mark.parametrize("url", ["", "a:1,", "http://a:1", "a:1/v2", "a:65536", "a:\uff11"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ServerUnavailable, match="expected the server's address as HOST:PORT, found"):
        Classifier(Options(url))


def test_proxy_variables_are_not_followed(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "grpc_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for protocol in PROTOCOLS:
        with asking(protocol) as (_, classifier):
            assert len(classifier.classify(IMAGES)) == 9
