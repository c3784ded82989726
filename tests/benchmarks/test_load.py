import asyncio
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import numpy as np
import pytest

from benchmarks.faults import EVERY
from benchmarks.load import by_asyncio
from benchmarks.load.by_asyncio import ServerTimes, closed_loop, open_loop
from benchmarks.load.drills import drills
from benchmarks.load.figures import Failed, LeftOut, figures, unmeasured
from benchmarks.load.saturation import saturation
from benchmarks.load.verdicts import Verdicts, meanwhile
from benchmarks.measure.workload import Workload

SERVICE_S, STALL_S, SECONDS = 0.002, 0.3, 1.0
RATE = Workload(batch=1, rate=100)
T = TypeVar("T")


class Sleepless(selectors.DefaultSelector):
    """Its clock skips a loop's waits, so a busy machine changes no latency."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now_s += timeout or 0
        return super().select(0)


@pytest.fixture
def sleepless(monkeypatch: pytest.MonkeyPatch) -> Callable[[Coroutine[Any, Any, T]], T]:

    def run(load: Coroutine[Any, Any, T]) -> T:
        selector = Sleepless()
        loop = asyncio.SelectorEventLoop(selector)
        loop.time = lambda: selector.now_s  # type: ignore[method-assign]
        monkeypatch.setattr(by_asyncio, "perf_counter", loop.time)
        try:
            return loop.run_until_complete(load)
        finally:
            loop.close()

    return run


def one_at_a_time(stalled: int) -> Callable[[], Awaitable[None]]:
    """Request `stalled` takes STALL_S."""
    turn, asked = asyncio.Lock(), iter(range(10**6))

    async def ask() -> None:
        async with turn:
            await asyncio.sleep(STALL_S if next(asked) == stalled else SERVICE_S)

    return ask


def test_arrivals_are_a_poisson_process_of_an_exact_rate() -> None:
    due_s = Workload(batch=64, rate=64_000).due_s(10)
    assert len(due_s) == 10_000
    assert due_s.min() >= 0
    assert due_s.max() <= 10
    gaps_s = np.diff(due_s)
    assert gaps_s.min() >= 0
    assert gaps_s.std() == pytest.approx(gaps_s.mean(), rel=0.05)  # even arrivals give 0
    assert (Workload(batch=64, rate=64_000).due_s(10) == due_s).all()


def test_a_stall_is_in_the_latency_of_all_that_was_due_meanwhile(sleepless: Callable[..., Any]) -> None:
    async def both() -> tuple[by_asyncio.Answered, by_asyncio.Answered]:
        due_s = RATE.due_s(SECONDS)
        return (
            await open_loop(one_at_a_time(20), due_s, SECONDS),
            await closed_loop(one_at_a_time(20), 1, SECONDS),
        )

    opened, closed = sleepless(both())
    assert len(opened.latencies_s) == 100
    # About 30 requests were due during the stall.
    assert 20 <= (opened.latencies_s > 0.02).sum() <= 60
    assert figures(opened.latencies_s, 0)["p99_ms"] > 800 * STALL_S
    # A closed loop meets the stall once.
    assert np.percentile(closed.latencies_s, 90) < STALL_S / 4
    assert (closed.latencies_s >= STALL_S).sum() == 1
    assert opened.requests_per_s == pytest.approx(100, rel=0.1)


def test_a_rate_above_what_the_server_answers(monkeypatch: pytest.MonkeyPatch, sleepless: Callable[..., Any]) -> None:
    monkeypatch.setattr(by_asyncio, "GIVE_UP_S", 0.2)
    monkeypatch.setattr(by_asyncio, "MAX_IN_FLIGHT", 4)
    most, now = 0, 0

    async def overloaded() -> by_asyncio.Answered:
        answer = one_at_a_time(-1)

        async def ask() -> None:
            nonlocal most, now
            now += 1
            most = max(most, now)
            await answer()
            now -= 1

        return await open_loop(ask, Workload(batch=1, rate=4000).due_s(0.5), 0.5)

    answered = sleepless(overloaded())
    assert most == 4
    assert len(answered.latencies_s) == 2000
    assert answered.requests_per_s == pytest.approx(1 / SERVICE_S, rel=0.01)
    assert np.percentile(answered.latencies_s, 99) > 0.4
    assert answered.latencies_s.max() <= 0.7 + SERVICE_S  # answering all would take 4 s


def test_no_answer_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_asyncio, "GIVE_UP_S", 0.0)

    async def never() -> by_asyncio.Answered:
        return await open_loop(lambda: asyncio.sleep(0.2), np.array([0.01]), 0.05)

    with pytest.raises(LeftOut, match=r"no request was answered within 0\.\d s"):
        asyncio.run(never())


def test_a_failure_ends_the_measurement() -> None:
    async def refused() -> None:
        raise Failed("broken")

    with pytest.raises(Failed, match="broken"):
        asyncio.run(open_loop(refused, np.array([0.0, 0.01]), 0.02))


def test_a_failure_meanwhile_is_raised_at_the_end() -> None:
    def ask(until: Callable[[], bool], verdicts: Verdicts) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), meanwhile(ask) as verdicts:
        assert verdicts.sent == 0


def test_only_a_long_queue_is_the_fault_of_the_load() -> None:
    assert isinstance(unmeasured("[request id: 75] Exceeds maximum queue size"), LeftOut)
    assert isinstance(unmeasured("connection refused"), Failed)


def test_server_times_are_means_of_the_requests_since() -> None:
    before, after = ServerTimes(10, 5_000_000, 7_000_000), ServerTimes(14, 7_000_000, 19_000_000)
    assert after.mean_ms_since(before) == (0.5, 3.0)
    with pytest.raises(Failed, match="expected answered requests, found none"):
        after.mean_ms_since(after)


def test_in_process_no_more_are_in_flight_than_answer() -> None:
    alone = [Workload(64, count, protocol="grpc", instances=2).alone() for count in (1, 2, 8)]
    assert [each.in_flight for each in alone] == [1, 2, 2]


def row(images_per_s: float | None, p99_ms: float = 10, **load: Any) -> dict[str, Any]:
    target = {"model": "vit", "engine": "onnxruntime", "precision": "fp32", "protocol": "grpc", "shared_memory": "none"}
    target |= {"instances": 1, "threads": 0, "batch": 1, "max_p99_ms": 50}
    figures = (
        {"reason": "the queue is full"} if images_per_s is None else {"images_per_s": images_per_s, "p99_ms": p99_ms}
    )
    return {**target, "in_flight": None, "rate": None, **load, **figures}


@pytest.mark.parametrize(
    ("rows", "rate", "beyond"),
    [
        ([row(100, rate=100), row(199, rate=200), row(250, rate=400)], 200, False),
        ([row(100, rate=100), row(199, rate=200)], 200, True),
        ([row(100, rate=100), row(199, rate=200), row(None, rate=400)], 200, False),  # refused
        ([row(100, rate=100), row(199, 51, rate=200)], 100, False),  # too late
        ([row(50, rate=100)], None, False),
    ],
)
def test_the_largest_rate_that_is_carried(rows: list[dict[str, Any]], rate: float | None, beyond: bool) -> None:
    (point,) = saturation(rows)
    assert (point["by"], point["rate"], point["beyond"]) == ("rate", rate, beyond)


def test_every_named_drill_is_there() -> None:
    assert sorted(drills(1, 1.0)) == sorted(EVERY)


def test_recovery_ends_with_the_longest_silence() -> None:
    late = (10.1, 29.95)  # sent right after the fault at 10 s, answered after the next
    assert Verdicts(right=[(9.0, 0.1), (40.0, 0.01), late, (40.1, 0.01)]).recovery_s(10.0) == 30.0
    assert Verdicts(right=[(9.0, 0.1)]).recovery_s(10.0) is None


@pytest.mark.parametrize(
    ("by_count", "in_flight", "beyond"),
    [
        ({1: 100, 2: 190, 8: 195}, 2, False),
        ({8: 300, 1: 100}, 8, True),
        ({1: 100}, 1, True),
        ({1: 200, 8: 100}, 1, False),
    ],
)
def test_the_fewest_in_flight_that_give_the_most(by_count: dict[int, float], in_flight: int, beyond: bool) -> None:
    rows = [row(images_per_s, in_flight=count) for count, images_per_s in by_count.items()]
    (point,) = saturation(rows)
    assert (point["by"], point["in_flight"], point["beyond"]) == ("in_flight", in_flight, beyond)
    assert point["images_per_s"] == by_count[in_flight]
