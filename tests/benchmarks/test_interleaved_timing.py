import time

import numpy as np
import pytest

from benchmarks.measure.interleaved_timing import (
    MIN_ROUNDS,
    STABLE_ROUNDS,
    Durations,
    Protocol,
    in_quickest_state,
    is_stable,
    ratio_with_interval,
    time_interleaved,
)

pytestmark = pytest.mark.usefixtures("any_rounds")


def noisy(rounds: int, mean_ns: float, seed: int, drift: np.ndarray | float = 1.0, noise: float = 0.05) -> Durations:
    factors = 1 + noise * np.random.default_rng(seed).standard_normal(rounds)
    return Durations(tuple((mean_ns * drift * factors).astype(int).tolist()))


def test_percentiles_of_known_samples() -> None:
    durations = Durations(tuple(range(1_000_000, 101_000_000, 1_000_000)))  # 1 to 100 ms
    assert durations.percentile_ms(50) == pytest.approx(50.5)
    assert durations.percentile_ms(90) == pytest.approx(90.1)
    assert durations.percentile_ms(99) == pytest.approx(99.01)
    assert durations.percentile_ms(50) == pytest.approx(np.median(durations.samples_ns) / 1e6)


def test_rounds_are_interleaved_after_one_of_warm_up() -> None:
    calls: list[str] = []
    runs = {name: lambda name=name: calls.append(name) for name in "abc"}
    measured = time_interleaved(runs, budget_s=0.001, protocol=Protocol())
    assert "".join(calls) == "abc" + "aabbcc" * MIN_ROUNDS  # quick candidates run once untimed at each turn
    assert [len(durations.samples_ns) for durations in measured.values()] == [MIN_ROUNDS] * 3


def test_a_sleep_takes_the_time_it_sleeps() -> None:
    measured = time_interleaved({"short": lambda: time.sleep(0.002), "long": lambda: time.sleep(0.02)}, 0.01)
    assert 2 <= measured["short"].percentile_ms(50) < 20
    assert 20 <= measured["long"].percentile_ms(50) < 100


def test_the_interval_of_a_ratio_holds_the_true_one_about_as_often_as_it_says() -> None:
    hits = 0
    for seed in range(100):
        drift = 1 + np.abs(np.random.default_rng(1000 + seed).standard_normal(30))  # hits both
        ratio = ratio_with_interval(noisy(30, 2e6, seed, drift), noisy(30, 1e6, seed + 500, drift))
        assert ratio.low <= ratio.ratio <= ratio.high
        hits += ratio.low <= 2 <= ratio.high
    assert 88 <= hits <= 100  # measured: 96


def test_a_drift_that_hits_both_cancels() -> None:
    slow = noisy(20, 3e6, 0, np.linspace(1, 4, 20))
    half = Durations(tuple(sample // 2 for sample in slow.samples_ns))
    ratio = ratio_with_interval(slow, half)
    assert (ratio.low, ratio.ratio, ratio.high) == pytest.approx((2, 2, 2), rel=1e-5)
    assert ratio == ratio_with_interval(slow, half), "seeded"
    shuffled = Durations(tuple(np.random.default_rng(0).permutation(half.samples_ns).tolist()))
    unpaired = ratio_with_interval(slow, shuffled)
    assert unpaired.high - unpaired.low > 0.3, "rounds that do not belong together tell less"


@pytest.mark.parametrize("counts", [(3, 4), (0, 0)])
def test_samples_of_other_rounds_have_no_ratio(counts: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=f"found {counts[0]} and {counts[1]}"):
        ratio_with_interval(*(Durations((1,) * count) for count in counts))


def test_what_is_stable() -> None:
    baseline = noisy(40, 1e6, 0, noise=0.02)
    assert is_stable(noisy(40, 3e6, 1, noise=0.02), baseline)
    assert is_stable(baseline, baseline)
    wild = noisy(40, 3e6, 1, noise=0.6)
    assert not is_stable(wild, baseline)
    assert not is_stable(wild, wild), "its own median"
    few = STABLE_ROUNDS - 1
    assert not is_stable(Durations((1,) * few), Durations((2,) * few))


def test_rounds_end_when_they_are_enough_and_not_before() -> None:
    checked: list[int] = []

    def enough(measured: object) -> bool:
        checked.append(len(measured["a"].samples_ns))
        return checked[-1] >= 8

    any_state = Protocol(one_state=False)  # a slower round counts too
    measured = time_interleaved({"a": lambda: None, "b": lambda: None}, 60, enough=enough, protocol=any_state)
    assert checked == [3, 4, 5, 7, 9]  # each time a quarter more
    assert [len(durations.samples_ns) for durations in measured.values()] == [9, 9]


SLOW = np.array([1.3] * 5 + [1.0] * 12 + [1.3] * 4)


def in_states(states: np.ndarray) -> list[Durations]:
    """PyTorch, which takes as long as the state says, and two quick graphs, which lose more."""
    return [
        noisy(len(states), mean, seed, states**power, 0.01)
        for seed, mean, power in ((0, 1e6, 1.0), (1, 3e5, 2.4), (2, 1.3e5, 2.4))
    ]


def test_rounds_in_which_the_machine_was_slower_do_not_count() -> None:
    """As in a run of single images of November 2026, of which 58 of 76 rows were unstable."""
    measured = in_states(SLOW)
    counted = in_quickest_state([durations.samples_ns for durations in measured])
    assert counted == list(range(5, 17))
    plain, *quick = (Durations(tuple(np.take(durations.samples_ns, counted).tolist())) for durations in measured)
    assert not any(is_stable(durations, measured[0]) for durations in measured[1:]), "rounds of both states"
    assert all(is_stable(durations, plain) for durations in quick)


@pytest.mark.parametrize(
    ("states", "counted"),
    [
        ([1.3] * 20, 20),
        ([1.3] * 14 + [1] * 7, 7),
        ([1.3] * 10 + [1] * 6, 16),  # the quicker state has no seven rounds
        ([1.3] * 30 + [1] * 9, 39),  # and here no third of them
        ([1, 1.03, 1.06] * 5, 15),
    ],
)
def test_a_state_lasts_a_third_of_the_rounds_and_seven(states: list[float], counted: int) -> None:
    assert len(in_quickest_state([durations.samples_ns for durations in in_states(np.array(states))])) == counted


def test_a_result_says_how_many_slower_rounds_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    times_ns = iter([10**6, *(int(1e6 * state) for state in SLOW)])  # the first is of the warm-up
    for module in ("benchmarks.measure.interleaved_timing", "export.interleaved"):
        monkeypatch.setattr(f"{module}.time_ns", lambda run: next(times_ns))
    protocol = Protocol(settle_s=0.0, refill=False)
    measured = time_interleaved({"candidate": lambda: None}, 0.0, min_rounds=len(SLOW), protocol=protocol)["candidate"]
    assert (measured.samples_ns, measured.slower_rounds) == ((10**6,) * 12, 9)


def test_without_candidates_there_are_no_rounds() -> None:
    assert time_interleaved({}, 0.01, enough=lambda measured: pytest.fail("a round")) == {}


def test_what_is_warm_is_not_called_for_it() -> None:
    calls: list[str] = []
    runs = {name: lambda name=name: calls.append(name) for name in "ab"}
    time_interleaved(runs, 0.001, min_rounds=1, warm_up_ns={"a": 10**9}, protocol=Protocol())
    assert "".join(calls) == "b" + "a" + "bb"  # b is quick, a was not
