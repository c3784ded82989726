"""Short benchmark runs of three rounds."""

import pytest

from benchmarks.measure.timing import MIN_ROUNDS, ROUNDS_VARIABLE


@pytest.fixture(autouse=True)
def three_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROUNDS_VARIABLE, str(MIN_ROUNDS))


@pytest.fixture
def any_rounds(monkeypatch: pytest.MonkeyPatch, three_rounds: None) -> None:
    """Without the tests' limit of rounds."""
    monkeypatch.delenv(ROUNDS_VARIABLE)
