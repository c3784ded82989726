"""How time is taken: interleaved, warmed up, raw samples kept, percentiles right."""

import time

import numpy as np
import pytest

from benchmarks.timing import MIN_ROUNDS, Durations, table, time_interleaved


def test_percentiles_of_known_samples() -> None:
    durations = Durations(tuple(range(1_000_000, 101_000_000, 1_000_000)))  # 1 to 100 ms
    assert durations.percentile_ms(50) == pytest.approx(50.5)
    assert durations.percentile_ms(90) == pytest.approx(90.1)
    assert durations.percentile_ms(99) == pytest.approx(99.01)
    assert durations.percentile_ms(50) == pytest.approx(np.median(durations.samples_ns) / 1e6)


def test_rounds_are_interleaved_after_one_of_warm_up() -> None:
    calls: list[str] = []
    shares: list[float] = []
    measured = time_interleaved(
        {name: lambda name=name: calls.append(name) for name in "abc"}, budget_s=0.001, on_round=shares.append
    )
    assert "".join(calls) == "abc" + "aabbcc" * MIN_ROUNDS  # quick ones run once untimed at each turn
    assert [len(durations.samples_ns) for durations in measured.values()] == [MIN_ROUNDS] * 3
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_sleep_takes_the_time_it_sleeps() -> None:
    measured = time_interleaved(
        {"short": lambda: time.sleep(0.002), "long": lambda: time.sleep(0.02)}, 0.01, lambda share: None
    )
    assert 2 <= measured["short"].percentile_ms(50) < 12
    assert 20 <= measured["long"].percentile_ms(50) < 40


def test_a_table_aligns_its_columns() -> None:
    lines = table(("model", "runtime", "ms"), [("vit", "torch", "1.00"), ("vitbnffn", "onnx", "12.00")]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[-1] == "vitbnffn  onnx     12.00"
