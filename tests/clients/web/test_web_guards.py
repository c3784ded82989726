from clients.options import Options
from clients.web.guards import RateLimit, host_refusal, rate_limit_key
from clients.web.routes import create_app
from clients.web.triton_requests import Triton


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


def test_charged_work_becomes_a_debt() -> None:
    clock = Clock()
    rate = RateLimit(rate_hz=2, burst=3, clock_s=clock)
    assert [rate.wait_s("a", 0), rate.wait_s("a")] == [0, 0]
    rate.charge("a", 5)
    assert [rate.wait_s("a", 0), rate.wait_s("a"), rate.wait_s("b")] == [1.5, 2, 0], "b does not wait for a"
    clock.now_s += 1.5
    assert [rate.wait_s("a", 0), rate.wait_s("a")] == [0, 0.5]


def test_what_counts_as_one_client() -> None:
    assert rate_limit_key("192.0.2.7") == rate_limit_key("::ffff:192.0.2.7") == "192.0.2.7"
    assert rate_limit_key("2001:db8::1") == rate_limit_key("2001:db8::ffff:2%eth0")


def test_an_ipv6_network_is_one_client() -> None:
    page = create_app(Triton(Options("127.0.0.1:1", retry_s=0)), RateLimit(rate_hz=0.01, burst=2)).test_client()
    senders = ["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"]
    asked = [page.get("/api/models", environ_overrides={"REMOTE_ADDR": sender}) for sender in senders]
    assert [answer.status_code for answer in asked] == [503, 503, 429, 503]


def test_memory_is_bounded_and_forgets_who_has_been_away_longest() -> None:
    rate = RateLimit(rate_hz=1, burst=1, clients=10, clock_s=Clock())
    for client in range(1000):
        assert rate.wait_s(str(client)) == 0
        assert rate.wait_s("always here") == (0 if client == 0 else 1)
    assert len(rate._buckets) == 10


def test_our_own_name_is_no_foreign_host() -> None:
    assert host_refusal("box:8080", "Box") is None
    assert host_refusal("other:8080", "Box") is not None
