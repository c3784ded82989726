"""Clocks, power, temperature and throttling of a GPU, from NVIDIA's management library (NVML)."""

from __future__ import annotations

import ctypes
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
SM_CLOCK, MEMORY_CLOCK, GPU_SENSOR = 1, 2, 0  # of nvml.h
# Bits of nvml.h. A power cap is normal under load, so it is only recorded.
SLOWED_BY = {0x08: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}
POWER_CAP = 0x04


@dataclass(frozen=True)
class Reading:
    sm_mhz: int
    memory_mhz: int
    power_w: float
    temperature_c: int
    reasons: int  # for reduced clocks, as bits

    @property
    def slowed_by(self) -> list[str]:
        return [name for bit, name in SLOWED_BY.items() if self.reasons & bit]


class Monitor:
    """Raises OSError without NVML or the GPU."""

    def __init__(self, uuid: str, library: str = LIBRARY) -> None:
        self.nvml = ctypes.CDLL(library)
        self.device = ctypes.c_void_p()
        self.readings: list[Reading] = []
        self._ask("nvmlInit_v2")
        self._ask("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self.device))

    def _ask(self, function: str, *arguments: object) -> None:
        if code := getattr(self.nvml, function)(*arguments):
            raise OSError(f"{function}: expected success, found NVML error {code}")

    def _value(self, function: str, *arguments: object, kind: Any = ctypes.c_uint) -> int:
        value = kind()
        self._ask(function, self.device, *arguments, ctypes.byref(value))
        return int(value.value)

    def undisturbed(self) -> bool:
        """Takes a reading; False for a reason in SLOWED_BY: the round does not count."""
        reading = Reading(
            self._value("nvmlDeviceGetClockInfo", SM_CLOCK),
            self._value("nvmlDeviceGetClockInfo", MEMORY_CLOCK),
            self._value("nvmlDeviceGetPowerUsage") / 1000,
            self._value("nvmlDeviceGetTemperature", GPU_SENSOR),
            self._value("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong),
        )
        self.readings.append(reading)
        return not reading.slowed_by

    def summary(self) -> dict[str, Any]:
        """[minimum, median, maximum] of each quantity, and numbers of turns."""
        table = [asdict(reading) for reading in self.readings]
        ranges = {
            key: [fold(row[key] for row in table) for fold in (min, median, max)]
            for key in ("sm_mhz", "memory_mhz", "power_w", "temperature_c")
            if table
        }
        slowed = [name for reading in self.readings for name in reading.slowed_by]
        capped = sum(bool(reading.reasons & POWER_CAP) for reading in self.readings)
        return {**ranges, "rejected": {name: slowed.count(name) for name in sorted({*slowed})}, "power_capped": capped}


def monitor(uuid: str, library: str = LIBRARY) -> Monitor | None:
    """None if NVML is missing or, as for some virtual GPUs, withholds a value."""
    try:
        watch = Monitor(uuid, library)
        watch.undisturbed()
    except (OSError, AttributeError):  # AttributeError: this NVML lacks a function
        return None
    watch.readings.clear()
    return watch
