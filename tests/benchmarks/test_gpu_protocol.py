"""The GPU protocol on the CPU, with a stub of NVML."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.measure.gpu_state import Monitor, monitor
from benchmarks.measure.timing import MAX_REFUSED, Protocol, Slowed, time_interleaved

TURN = Protocol(settle_s=0.0, refill=False, load_s=0.02, turn_s=0.01)


def test_a_turn_is_many_calls_after_a_time_of_load() -> None:
    calls: list[float] = []

    def run() -> None:
        calls.append(time.perf_counter())
        time.sleep(0.001)

    measured = time_interleaved({"it": run}, 0.0, min_rounds=3, protocol=TURN)
    assert len(measured["it"].samples_ns) == 3
    assert all(1e6 <= sample < 1e7 for sample in measured["it"].samples_ns), "of a call, not of a turn"
    assert len(calls) > 3 + 3, "one call a round would be 3 and a warm-up"
    calls.clear()
    time_interleaved({"it": run}, 0.0, min_rounds=3, protocol=Protocol(refill=False))
    assert len(calls) == 1 + 3


def test_a_round_in_which_the_device_slowed_down_does_not_count() -> None:
    answers: Iterator[bool] = iter([True, False, False, True, True])
    order: list[int] = []

    def accept() -> bool:
        order.append(len(order))
        return next(answers)

    told: list[bool] = []
    protocol = Protocol(accept=accept, ended=told.append)
    measured = time_interleaved({"it": lambda: None}, 0.0, min_rounds=3, protocol=protocol)
    assert len(measured["it"].samples_ns) == 3
    assert len(order) == 5
    assert told == [True, False, False, True, True]


def test_one_slow_turn_refuses_its_round() -> None:
    answers: Iterator[bool] = iter([False, True, True, True])
    told: list[bool] = []
    protocol = Protocol(settle_s=0.0, accept=lambda: next(answers), ended=told.append)
    measured = time_interleaved(dict.fromkeys("ab", lambda: None), 0.0, min_rounds=1, protocol=protocol)
    assert told == [False, True]
    assert [len(each.samples_ns) for each in measured.values()] == [1, 1]


def test_a_device_that_is_slow_in_all_rounds_gives_no_figure() -> None:
    asked: list[int] = []
    with pytest.raises(Slowed, match="expected rounds at full speed"):
        time_interleaved(
            {"it": lambda: None}, 0.0, min_rounds=3, protocol=Protocol(0.0, accept=lambda: bool(asked.append(1)))
        )
    assert len(asked) == MAX_REFUSED


NVML = """
#include <string.h>
static int reads = 0;
int nvmlInit_v2(void) { return FAILS; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = (void *)0x123456789abc;
    return strcmp(uuid, "GPU-1");
}
static int known(void *device) { return device == (void *)0x123456789abc ? 0 : 2; }
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned *mhz) {
    *mhz = kind == 1 ? 1700 + 100 * reads : 2600;
    return known(device);
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) { *mw = 350500; return known(device) + NO_POWER; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
    *celsius = 60 + reads; return known(device); }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
    static const unsigned long long each[] = {0x0, 0x4, 0x44};
    *reasons = each[reads++];
    return known(device);
}
"""


def library(folder: Path, fails: int = 0, no_power: int = 0, code: str = NVML) -> str:
    if not shutil.which("cc"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)("a C compiler is not installed")
    path = folder / f"libstub-{fails}-{no_power}-{len(code)}.so"
    defined = [f"-DFAILS={fails}", f"-DNO_POWER={no_power}"]
    command = ["cc", "-shared", "-fPIC", *defined, "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=code, text=True, check=True)
    return str(path)


def test_clocks_power_temperature_and_why_a_round_was_refused(tmp_path: Path) -> None:
    watch = Monitor("GPU-1", library(tmp_path))
    assert [watch.undisturbed() for _ in range(3)] == [True, True, False]
    assert watch.readings[0].slowed_by == []
    assert watch.summary() == {
        "sm_mhz": [1700, 1800, 1900],
        "memory_mhz": [2600, 2600, 2600],
        "power_w": [350.5, 350.5, 350.5],
        "temperature_c": [60, 61, 62],
        "rejected": {"hardware thermal": 1},
        "power_capped": 2,
    }


def test_without_nvml_nothing_is_watched(tmp_path: Path) -> None:
    assert monitor("GPU-1", "libno-such-nvml.so.1") is None
    assert monitor("GPU-1", library(tmp_path, fails=9)) is None
    assert monitor("GPU-1", library(tmp_path, no_power=3)) is None
    assert monitor("GPU-1", library(tmp_path, code=NVML.replace("GetTemperature", "GetWarmth"))) is None
    assert monitor("GPU-2", library(tmp_path)) is None
    watch = monitor("GPU-1", library(tmp_path))
    assert watch is not None
    assert watch.readings == [], "the first reading only asks what the GPU tells"
