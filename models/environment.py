"""On what a figure was measured: hardware, versions, commit. Out: one dictionary, stored with every result."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "torch",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "tensorrt",
    "numpy",
    "kornia",
    "scikit-learn",
    "ax-platform",
    "botorch",
)


def describe(threads: int, device: str) -> dict[str, Any]:
    """The machine, the packages installed of those that matter, the commit, and the load of the last minute."""
    import torch

    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": threads,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "load_1min": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": _commit(),
    }


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.*)", cpuinfo.read_text()) if cpuinfo.is_file() else None
    return found.group(1) if found else platform.processor()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    root = Path(__file__).parent
    try:
        done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None
