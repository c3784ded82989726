import urllib.error
import urllib.request

import pytest

from clients.probing.health_endpoint import Health
from clients.probing.verdicts import Probe
from serving.ports import free_ports


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
