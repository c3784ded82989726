from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from benchmarks.drills.checked_requests import Verdicts, meanwhile
from benchmarks.measure.workload_settings import Workload
from benchmarks.reporting.tables.saturation import saturation


def test_arrivals_are_a_poisson_process_of_an_exact_rate() -> None:
    due_s = Workload(batch=64, rate=64_000).due_s(10)
    assert len(due_s) == 10_000
    assert due_s.min() >= 0
    assert due_s.max() <= 10
    gaps_s = np.diff(due_s)
    assert gaps_s.min() >= 0
    assert gaps_s.std() == pytest.approx(gaps_s.mean(), rel=0.05)  # even arrivals give 0
    assert (Workload(batch=64, rate=64_000).due_s(10) == due_s).all()


def test_a_failure_meanwhile_is_raised_at_the_end() -> None:
    def ask(until: Callable[[], bool], verdicts: Verdicts) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"), meanwhile(ask) as verdicts:
        assert verdicts.sent == 0


def test_in_process_no_more_requests_are_in_flight_than_instances() -> None:
    alone = [Workload(64, count, protocol="grpc", instances=2).alone() for count in (1, 2, 8)]
    assert [workload.in_flight for workload in alone] == [1, 2, 2]


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
