"""Describes the hardware and versions that a result comes from, and names the commit."""

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
    "openvino",
    "tensorrt",
    "polygraphy",
    "triton",
    "numpy",
    "kornia",
    "scikit-learn",
    "ax-platform",
    "botorch",
)


# The instruction sets of CPUs that decide which precision is fast, as the Linux kernel names them.
INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimd", "sve")


def describe(threads: int, device: str) -> dict[str, Any]:
    """JSON-ready: processor, cores, `threads` and `device` of the run, load, versions of PACKAGES."""
    import torch

    gpu = {"gpu": _gpu(), "cuda": torch.version.cuda} if device == "cuda" else {}
    return {
        "cpu": next(iter(_cpuinfo("model name")), platform.processor()),
        "cpu_mhz": [float(mhz) for mhz in _cpuinfo("cpu MHz")],
        "instruction_sets": instruction_sets(),
        "cores": os.cpu_count(),
        "threads": threads,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "load_1min": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    } | gpu


def instruction_sets() -> list[str]:
    """Those of INSTRUCTION_SETS that the first core has; empty on other systems than Linux."""
    flags = {*" ".join([*_cpuinfo("flags")[:1], *_cpuinfo("Features")[:1]]).split()}
    return [name for name in INSTRUCTION_SETS if name in flags]


def _cpuinfo(field: str) -> list[str]:
    """The field's value for each core; empty on other systems than Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    return re.findall(rf"{field}\s*: (.*)", cpuinfo.read_text()) if cpuinfo.is_file() else []


def _gpu() -> dict[str, str] | None:
    """Driver, clocks and power limit of the first GPU as nvidia-smi prints them; None without it."""
    fields = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit")
    command = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    values = done.stdout.strip().split(", ")
    return dict(zip(fields, values, strict=True)) if len(values) == len(fields) else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of this checkout as `git describe` shows it, with "-dirty" behind it if the working tree has changes.
    None outside a git repository.
    """
    root = Path(__file__).parent
    try:
        done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None
