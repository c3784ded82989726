from unittest.mock import Mock

import pytest

from clients.web.guards import RateLimit, foreign_host, foreign_site, sender_of
from clients.web.pages import create_app


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_burst_then_a_steady_rate() -> None:
    clock = Clock()
    rate = RateLimit(rate_hz=2, burst=3, clock_s=clock)
    assert [rate.wait_s("a") for _ in range(4)] == [0, 0, 0, 0.5]
    clock.now_s += 0.25
    assert rate.wait_s("a") == 0.25
    clock.now_s += 0.25
    assert [rate.wait_s("a") for _ in range(2)] == [0, 0.5]
    clock.now_s += 1000
    assert [rate.wait_s("a") for _ in range(4)] == [0, 0, 0, 0.5]


def test_clients_do_not_wait_for_each_other() -> None:
    rate = RateLimit(rate_hz=1, burst=1, clock_s=Clock())
    assert [rate.wait_s(client) for client in "aabb"] == [0, 1, 0, 1]


def test_an_ipv6_network_is_one_client() -> None:
    triton = Mock(models=Mock(return_value=([], "")))
    page = create_app(triton, RateLimit(rate_hz=1, burst=2, clock_s=Clock())).test_client()
    senders = ["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"]
    asked = [page.get("/api/models", environ_overrides={"REMOTE_ADDR": sender}) for sender in senders]
    assert [answer.status_code for answer in asked] == [200, 200, 429, 200]


def test_what_counts_as_one_client() -> None:
    assert sender_of("192.0.2.7") == sender_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert sender_of("2001:db8::1") == sender_of("2001:db8::ffff:2%eth0")
    assert sender_of("2001:db8::1") != sender_of("2001:db8:0:1::1")


def test_memory_is_bounded_and_forgets_who_has_been_away_longest() -> None:
    rate = RateLimit(rate_hz=1, burst=1, clients=10, clock_s=Clock())
    for client in range(1000):
        assert rate.wait_s(str(client)) == 0
        assert rate.wait_s("always here") == (0 if client == 0 else 1)
    assert len(rate._buckets) == 10


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "10.1.2.3", "[::1]:8080", "box:8080"])
def test_our_own_host(host: str) -> None:
    assert foreign_host(host, "Box") is None


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example", "127.0.0.1@evil.example", "[::1", "a b"]
)
def test_a_foreign_host(host: str) -> None:
    assert repr(host) in str(foreign_host(host, "box"))


def test_the_origin_is_compared_with_its_port() -> None:
    assert foreign_site("localhost:8080", "http://localhost:8080", "same-origin") is None
    assert foreign_site("localhost:8080", "https://localhost:8080", None) is None  # behind a proxy with TLS
    assert "http://localhost:3000" in str(foreign_site("localhost:8080", "http://localhost:3000", None))
    assert "same-site" in str(foreign_site("localhost:8080", None, "same-site"))
