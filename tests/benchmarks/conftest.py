import pytest

from benchmarks.measure.timing import MIN_ROUNDS, MOST_ROUNDS


@pytest.fixture(autouse=True)
def three_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.measure.timing.MOST_ROUNDS", MIN_ROUNDS)


@pytest.fixture
def any_rounds(monkeypatch: pytest.MonkeyPatch, three_rounds: None) -> None:
    monkeypatch.setattr("benchmarks.measure.timing.MOST_ROUNDS", MOST_ROUNDS)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's limits in an instant: no test judges them."""
    from benchmarks.measure import roofline

    monkeypatch.setattr(roofline, "SIDE", {"cpu": 128, "cuda": 128})
    monkeypatch.setattr(roofline, "STREAM_FLOATS", 1 << 16)
