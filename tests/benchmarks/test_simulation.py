import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.load.simulation import Fleet, day_rates, simulate, simulate_day
from benchmarks.scale import scale

EXPONENTIAL_MS = np.random.default_rng(0).exponential(10.0, 20_000).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_one_server_is_the_queue_of_the_textbook(load: float) -> None:
    """M/M/1: the time in the system is exponential with the mean service / (1 - load)."""
    mean_s = float(np.mean(EXPONENTIAL_MS)) / 1e3
    tally = simulate(EXPONENTIAL_MS, Fleet(1, in_flight=10_000), load / mean_s, 40_000)
    expected_ms = 1e3 * mean_s / (1 - load)
    assert np.mean(tally.latencies_ms) == pytest.approx(expected_ms, rel=0.08)
    assert np.median(tally.latencies_ms) == pytest.approx(expected_ms * np.log(2), rel=0.08)
    assert not tally.refused + tally.failed


def test_of_two_servers_the_less_busy_is_asked() -> None:
    one = simulate(EXPONENTIAL_MS, Fleet(1), 60, 8000)
    two = simulate(EXPONENTIAL_MS, Fleet(2), 120, 8000)
    assert np.mean(two.latencies_ms) < 0.85 * np.mean(one.latencies_ms)


def test_overload_is_refused_and_the_rest_waits_for_a_full_queue_at_most() -> None:
    tally = simulate([10.0], Fleet(2, in_flight=8), 400, 8000)
    assert tally.refused / tally.requests == pytest.approx(0.5, abs=0.02)
    assert max(tally.latencies_ms) <= 16 * 10.0 + 1e-6


def test_failures_are_asked_elsewhere_until_nothing_is_left() -> None:
    faulty = Fleet(10, between_failures_s=5, repair_s=1)
    tally = simulate([10.0], faulty, 300, 8000)
    assert tally.asked_again > 0
    assert tally.failed < tally.asked_again / 3
    alone = simulate([10.0], Fleet(1, between_failures_s=5, repair_s=1), 30, 2000)
    assert alone.failed / alone.requests == pytest.approx(1 / 6, abs=0.1)


def test_no_request_returns_to_the_server_that_failed_it() -> None:
    """Until its failure is seen, its empty queue is the shortest."""
    tally = simulate([1.0], Fleet(3, between_failures_s=30, repair_s=1), 300, 8000)
    assert tally.asked_again > 0
    assert tally.failed == 0


def test_without_faults_nothing_fails() -> None:
    day = simulate_day([10.0], Fleet(4), 200, 500)
    assert (day.failed, day.asked_again, day.refused) == (0, 0, 0)
    assert max(day_rates(200)) == 200
    assert min(day_rates(200)) == 50


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", '{"benchmark": "bulk"}', '{"two_servers": {"service_ms": [1.0]}}'),
        '{"two_servers": {"service_ms": [], "rows": []}}',
        '{"two_servers": {"service_ms": [NaN], "rows": [{"rate": 5.0}]}}',
        '{"two_servers": {"service_ms": [1.0], "rows": [{"rate": 0}]}}',
    ],
)
def test_measured_times_of_another_file(content, tmp_path):
    (tmp_path / "other.json").write_text(content)
    done = CliRunner().invoke(scale, ["--measured", str(tmp_path / "other.json")])
    assert done.exit_code == 1
    assert f"Error: {tmp_path}/other.json: expected a result of benchmarks/scale.py, found" in done.output


@pytest.mark.slow
def test_the_command_takes_measured_times(tmp_path) -> None:
    measured = tmp_path / "measured.json"
    rows = '[{"load": 0.5, "rate": 100.0, "p50_ms": 11.0, "p99_ms": 30.0}]'
    measured.write_text(f'{{"two_servers": {{"service_ms": [9.0, 11.0], "rows": {rows}}}}}')
    done = CliRunner().invoke(scale, ["--measured", str(measured), "--requests", "200"])
    assert done.exit_code == 0, done.output
    assert done.output.count("day: servers 1000") == 3
    assert "simulated" in done.output
