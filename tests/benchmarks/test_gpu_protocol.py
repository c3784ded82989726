"""The GPU protocol on the CPU, with a stub of NVML."""

import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.measure.gpu_state import Monitor, monitor
from benchmarks.measure.interleaved_timing import MAX_REFUSED, Protocol, Slowed, ratio_with_interval, time_interleaved

TURN = Protocol(settle_s=0.0, refill=False, load_s=0.02, turn_s=0.01)


def test_a_turn_is_many_calls_after_a_time_of_load() -> None:
    calls: list[float] = []

    def run() -> None:
        calls.append(time.perf_counter())
        time.sleep(0.001)

    measured = time_interleaved({"candidate": run}, 0.0, min_rounds=3, protocol=TURN)
    assert len(measured["candidate"].samples_ns) == 3
    assert all(1e6 <= sample < 1e7 for sample in measured["candidate"].samples_ns), "of a call, not of a turn"
    assert len(calls) > 3 + 3, "with single calls there would be 3 and a warm-up"
    assert 3 < len(measured["candidate"].calls_ns) < len(calls), "all but those of the warm-up"
    calls.clear()
    time_interleaved({"candidate": run}, 0.0, min_rounds=3, protocol=Protocol(refill=False))
    assert len(calls) == 1 + 3


def test_percentiles_are_of_single_calls_and_ratios_of_the_rounds_medians() -> None:
    """Every turn has a slow call in ten, which the percentiles of the turns' medians would hide."""
    calls: list[int] = []

    def run() -> None:
        calls.append(len(calls))
        time.sleep(0.06 if len(calls) % 10 == 0 else 0.001)

    protocol = Protocol(0.0, refill=False, turn_s=0.2)
    measured = time_interleaved({"candidate": run}, 0.0, min_rounds=3, protocol=protocol)["candidate"]
    assert len(measured.samples_ns) == 3
    assert measured.percentile_ms(99) >= 60 > 2 * max(measured.samples_ns) / 1e6
    assert ratio_with_interval(measured, measured).ratio == 1


def test_a_round_in_which_the_device_slowed_down_does_not_count() -> None:
    """A slow turn refuses its round."""
    undisturbed = iter([True, True, False, True, True, False, True, True, True, True])  # after each turn of a and b
    counts: list[bool] = []
    protocol = Protocol(settle_s=0.0, accept=lambda: next(undisturbed), ended=counts.append)
    measured = time_interleaved(dict.fromkeys("ab", lambda: None), 0.0, min_rounds=3, protocol=protocol)
    assert counts == [True, False, False, True, True]
    assert [len(durations.samples_ns) for durations in measured.values()] == [3, 3]


def test_a_device_that_is_slow_in_all_rounds_gives_no_figure() -> None:
    turns: list[int] = []
    with pytest.raises(Slowed, match="expected rounds at full speed"):
        time_interleaved(
            {"candidate": lambda: None}, 0.0, min_rounds=3, protocol=Protocol(0.0, accept=lambda: bool(turns.append(1)))
        )
    assert len(turns) == MAX_REFUSED


class NvmlError(Exception):
    pass


def nvml(fails: str = "") -> SimpleNamespace:
    """In place of NVIDIA's module pynvml, which needs the driver. The GPU warms up from reading to reading."""
    reads: list[str] = []

    def answer(call: str, value: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any) -> Any:
            if call == fails:
                raise NvmlError(call)
            return value(*arguments)

        return ask

    def reasons(device: str) -> int:
        reads.append(device)
        return (0x0, 0x4, 0x44)[len(reads) - 1]

    return SimpleNamespace(
        NVMLError=NvmlError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=answer("Init", lambda: None),
        nvmlDeviceGetHandleByUUID=answer("Handle", lambda uuid: f"handle of {uuid}"),
        nvmlDeviceGetClockInfo=answer("Clock", lambda device, kind: 1700 + 100 * len(reads) if kind == 1 else 2600),
        nvmlDeviceGetPowerUsage=answer("Power", lambda device: 350_500),
        nvmlDeviceGetTemperature=answer("Temperature", lambda device, sensor: 60 + len(reads)),
        nvmlDeviceGetCurrentClocksEventReasons=answer("Reasons", reasons),
    )


def test_clocks_power_temperature_and_why_a_round_was_refused() -> None:
    watch = Monitor("GPU-1", nvml())
    assert [watch.undisturbed() for _ in range(3)] == [True, True, False]
    assert watch.summary() == {
        "sm_mhz": [1700, 1800, 1900],
        "memory_mhz": [2600, 2600, 2600],
        "power_w": [350.5, 350.5, 350.5],
        "temperature_c": [60, 61, 62],
        "rejected": {"hardware thermal": 1},
        "power_capped": 2,
    }


def test_without_nvml_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert monitor("GPU-1") is None
    for fails in ("Init", "Handle", "Clock", "Power", "Temperature", "Reasons"):
        monkeypatch.setitem(sys.modules, "pynvml", nvml(fails))
        assert monitor("GPU-1") is None, fails
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    watch = monitor("GPU-1")
    assert watch is not None
    assert watch.readings == [], "the first reading only asks what the GPU tells"
