"""Clocks, power, temperature and throttling of a GPU, from NVIDIA's management library (NVML)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

# Bits of nvml.h. Under load a power cap is normal, so it refuses no round.
SLOWED_BY = {0x08: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}
POWER_CAP = 0x04


@dataclass(frozen=True)
class Reading:
    """`reasons`: why the clocks are reduced, as bits."""

    sm_mhz: int
    memory_mhz: int
    power_w: float
    temperature_c: int
    reasons: int

    @property
    def slowed_by(self) -> list[str]:
        return [name for bit, name in SLOWED_BY.items() if self.reasons & bit]


class Monitor:
    """Reads a GPU's state. `nvml`: the module pynvml. Raises pynvml's NVMLError without NVML or the GPU."""

    def __init__(self, uuid: str, nvml: Any) -> None:
        self.nvml = nvml
        self.readings: list[Reading] = []
        nvml.nvmlInit()
        self.device = nvml.nvmlDeviceGetHandleByUUID(uuid)

    def undisturbed(self) -> bool:
        """Takes a reading. Returns False if the GPU is slowed for a reason in SLOWED_BY."""
        nvml, device = self.nvml, self.device
        reading = Reading(
            nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
            nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_MEM),
            nvml.nvmlDeviceGetPowerUsage(device) / 1000,
            nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU),
            nvml.nvmlDeviceGetCurrentClocksEventReasons(device),
        )
        self.readings.append(reading)
        return not reading.slowed_by

    def summary(self) -> dict[str, Any]:
        """[minimum, median, maximum] of each quantity, and how many readings were slowed down or capped by power."""
        readings = [asdict(reading) for reading in self.readings]
        ranges = {
            key: [statistic(reading[key] for reading in readings) for statistic in (min, median, max)]
            for key in ("sm_mhz", "memory_mhz", "power_w", "temperature_c")
            if readings
        }
        slowed = [name for reading in self.readings for name in reading.slowed_by]
        capped = sum(bool(reading.reasons & POWER_CAP) for reading in self.readings)
        return {**ranges, "rejected": {name: slowed.count(name) for name in sorted({*slowed})}, "power_capped": capped}


def monitor(uuid: str) -> Monitor | None:
    """The monitor of a GPU; None if NVML is missing or, as for some virtual GPUs, withholds a value."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        gpu_monitor = Monitor(uuid, pynvml)
        gpu_monitor.undisturbed()
    except pynvml.NVMLError:
        return None
    gpu_monitor.readings.clear()
    return gpu_monitor
