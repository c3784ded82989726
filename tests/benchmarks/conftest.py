import pytest

from benchmarks.measure.interleaved_timing import MIN_ROUNDS, MOST_ROUNDS


@pytest.fixture(autouse=True)
def three_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.measure.interleaved_timing.MOST_ROUNDS", MIN_ROUNDS)


@pytest.fixture
def any_rounds(monkeypatch: pytest.MonkeyPatch, three_rounds: None) -> None:
    monkeypatch.setattr("benchmarks.measure.interleaved_timing.MOST_ROUNDS", MOST_ROUNDS)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's limits in an instant: no test judges them."""
    from benchmarks.measure import peak_flops_and_bandwidth

    monkeypatch.setattr(peak_flops_and_bandwidth, "SIDE", {"cpu": 128, "cuda": 128})
    monkeypatch.setattr(peak_flops_and_bandwidth, "STREAM_FLOATS", 1 << 16)
