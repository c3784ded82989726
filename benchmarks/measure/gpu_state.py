"""Clocks, power, temperature and throttling of a GPU, from NVIDIA's management library (NVML)."""

from __future__ import annotations

from statistics import median
from typing import Any

# Bits of nvml.h. Under load a power cap is normal, so it refuses no round.
SLOWED_BY = {0x08: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}
POWER_CAP = 0x04


def slowed_by(reasons: int) -> list[str]:
    """`reasons`: why the clocks are reduced, as bits."""
    return [name for bit, name in SLOWED_BY.items() if reasons & bit]


class Monitor:
    """Reads a GPU's state. `nvml`: the module pynvml. Raises pynvml's NVMLError without NVML or the GPU."""

    def __init__(self, uuid: str, nvml: Any) -> None:
        self.nvml = nvml
        self.readings: list[dict[str, Any]] = []
        nvml.nvmlInit()
        self.device = nvml.nvmlDeviceGetHandleByUUID(uuid)

    def undisturbed(self) -> bool:
        """Takes a reading. Returns False if the GPU is slowed for a reason in SLOWED_BY."""
        nvml, device = self.nvml, self.device
        reading = {
            "sm_mhz": nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),
            "memory_mhz": nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_MEM),
            "power_w": nvml.nvmlDeviceGetPowerUsage(device) / 1000,
            "temperature_c": nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU),
            "reasons": nvml.nvmlDeviceGetCurrentClocksEventReasons(device),
        }
        self.readings.append(reading)
        return not slowed_by(reading["reasons"])

    def summary(self) -> dict[str, Any]:
        """[minimum, median, maximum] of each quantity, and how many readings were slowed down or capped by power."""
        ranges = {
            key: [statistic(reading[key] for reading in self.readings) for statistic in (min, median, max)]
            for key in ("sm_mhz", "memory_mhz", "power_w", "temperature_c")
            if self.readings
        }
        slowed = [name for reading in self.readings for name in slowed_by(reading["reasons"])]
        capped = sum(bool(reading["reasons"] & POWER_CAP) for reading in self.readings)
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
