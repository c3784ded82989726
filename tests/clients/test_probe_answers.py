import base64
import json
import struct
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Mapping, Sequence

import pytest
import raw_server

from clients.probing.health_endpoint import Health
from clients.probing.server_probe import probe_server
from clients.probing.verdicts import Probe
from serving.ports import free_ports

NAN, INFINITY = float("nan"), float("inf")
INFINITE = "expected the stored logits, found NaN or infinity"
STATS = "/v2/models/stats"
CONFIG, INFER = "/v2/models/net/versions/1/config", "/v2/models/net/versions/1/infer"


def reply(content: object, binary: bytes = b"") -> bytes:
    text = json.dumps(content).encode()
    return raw_server.reply(text + binary, header=f"Inference-Header-Content-Length: {len(text)}\r\n")


def answers(
    logits: Sequence[float] = (5, 1, 2), tolerance: float | None = 1e-4, others: Mapping[str, bytes] | None = None
) -> dict[str, bytes]:
    image = base64.b64encode(zlib.compress(bytes(4))).decode()
    stored = {"image": image, "answers": {"1": {"logits": [5, 1, 2], "tolerance": tolerance}}}
    count = {"name": "net", "version": "1", "inference_stats": {"success": {"count": 0}}}
    output = {"name": "logits", "datatype": "FP32", "shape": [1, 3], "parameters": {"binary_data_size": 12}}
    config = {
        "input": [{"name": "image", "dims": [4], "data_type": "TYPE_UINT8"}],
        "output": [{"name": "logits", "dims": [3], "data_type": "TYPE_FP32"}],
        "parameters": {"probe": {"string_value": json.dumps(stored)}},
    }
    return {
        STATS: reply({"model_stats": [count]}),
        CONFIG: reply(config),
        INFER: reply({"outputs": [output]}, struct.pack("<3f", *logits)),
        **(others or {}),
    }


def asked(answers: Mapping[str, bytes]) -> Probe:
    with raw_server.answering(lambda path: [answers[path]]) as url:
        return probe_server(url, timeout_s=5)


@pytest.mark.parametrize("tolerance", [1e-4, None])
@pytest.mark.parametrize(
    ("logits", "error", "reason"),
    [
        ((5, 1, 2), 0.0, ""),
        ((1, 5, 2), 4.0, "expected the stored logits, found an error of 4"),
        ((5, NAN, NAN), None, INFINITE),
        ((NAN, 1, 2), None, INFINITE),
        ((INFINITY, 1, 2), None, INFINITE),
        ((5, 1, -INFINITY), None, INFINITE),
    ],
)
def test_only_finite_logits_are_right(
    logits: Sequence[float], error: float | None, reason: str, tolerance: float | None
) -> None:
    found = asked(answers(logits, tolerance))
    (version,) = json.loads(found.to_json(), parse_constant=pytest.fail)["versions"]
    assert (version["state"], found.ok) == (("wrong", False) if reason else ("right", True))
    assert (version["max_abs_error"], version["reason"]) == (error, reason)


HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"
DEEP = raw_server.reply(b"[" * 9999)
HALF_AN_ERROR = b"HTTP/1.1 500 Oops\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nx"


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        (STATS, b"SSH-2.0-OpenSSH_9\r\n", "no answer: BadStatusLine('SSH-2.0-OpenSSH_9\\r\\n')"),
        (STATS, HALF_AN_ERROR, "HTTP 500 "),
        (STATS, reply(7), "expected Triton's statistics, found '7'"),
        (STATS, HALF, "no answer: IncompleteRead(1 bytes read, 98 more expected)"),
        (STATS, reply({}), "expected Triton's statistics, found '{}'"),
        (STATS, reply([1]), "expected Triton's statistics, found '[1]'"),
        (STATS, DEEP, f"{STATS[1:]}: expected JSON, found maximum recursion depth exceeded"),
        (STATS, reply({"model_stats": 7}), "expected Triton's statistics, found \"{'model_stats': 7}\""),
    ],
)
def test_a_server_that_is_not_triton_fails(path: str, answer: bytes, reason: str) -> None:
    found = asked(answers(others={path: answer}))
    assert (found.ok, found.versions, found.reason.partition(" while decoding")[0]) == (False, (), reason)


@pytest.mark.parametrize(
    ("path", "answer", "reason"),
    [
        (CONFIG, reply([]), "expected a classifier's answer, found AttributeError"),
        (CONFIG, reply({"parameters": {"probe": {"string_value": "[]"}}}), "expected a classifier's answer, found"),
        (CONFIG, DEEP, "v2/models/net/versions/1/config: expected JSON, found maximum recursion depth"),
        (INFER, DEEP, "expected a classifier's answer, found RecursionError"),
        (INFER, HALF, "no answer: IncompleteRead"),
        (INFER, reply({"outputs": [{"shape": [1e300]}]}), "expected a classifier's answer, found"),
    ],
)
def test_a_version_with_another_answer_fails(path: str, answer: bytes, reason: str) -> None:
    found = asked(answers(others={path: answer}))
    (version,) = found.versions
    assert (found.ok, version.state) == (False, "failed")
    assert version.reason.startswith(reason)


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"])
def test_an_answer_drop_by_drop_meets_the_same_deadline(start: bytes) -> None:
    def drops(path: str) -> Iterator[bytes]:
        yield start
        for _ in range(200):
            yield b"["
            time.sleep(0.1)

    begun = time.monotonic()
    with raw_server.answering(drops) as url:
        assert probe_server(url, timeout_s=0.5).reason == "no answer: timed out"
    assert time.monotonic() - begun < 10


def test_names_that_fit_no_address_fail() -> None:
    assert probe_server("127.0.0.1:80a").reason == "no answer: InvalidURL(\"nonnumeric port: '80a'\")"
    count = {"name": "a net", "version": "1", "inference_stats": {"success": {"count": 0}}}
    found = asked(answers(others={STATS: reply({"model_stats": [count]})}))
    assert [version.state for version in found.versions] == ["failed"]
    assert "InvalidURL" in found.versions[0].reason


def status(address: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{address}/", timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_only_a_fresh_passing_verdict_is_healthy(host: str) -> None:
    address = f"{host}:{free_ports(1)[0]}"
    try:
        health = Health(address, stale_s=1e6)
    except OSError as error:
        pytest.skip(f"{address}: {error.strerror}")  # a machine without IPv6
    assert status(address) == 503, "no verdict yet"
    health.update(Probe("server", True, 0.1))
    assert status(address) == 200
    health.update(Probe("server", False, 0.1))
    assert status(address) == 503
    stale = Health(f"127.0.0.1:{free_ports(1)[0]}", stale_s=-1)
    stale.update(Probe("server", True, 0.1))
    assert stale.answer()[0] == 503
