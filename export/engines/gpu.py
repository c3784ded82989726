"""Checks what an engine build needs."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from export.engines.tensorrt_versions import check_server, server_version
from export.errors import Unavailable

TENSORRT_MAJORS = ("10", "11")
INSTALL = "pip install -c constraints.txt -e '.[tensorrt]'"
# From cuda.h.
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76


@dataclass(frozen=True)
class Gpu:
    name: str
    compute_capability: str


def find_gpu() -> Gpu | None:
    """Asks the driver itself: no package's build matters."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDeviceGetName(name, len(name), device)
        or driver.cuDeviceGetAttribute(ctypes.byref(major), COMPUTE_CAPABILITY_MAJOR, device)
        or driver.cuDeviceGetAttribute(ctypes.byref(minor), COMPUTE_CAPABILITY_MINOR, device)
    )
    return None if failed else Gpu(name.value.decode(), f"{major.value}.{minor.value}")


def require() -> Gpu:
    """Raises Unavailable."""
    gpu = find_gpu()
    missing = [] if gpu else ["an NVIDIA GPU (a machine with its driver; in a container, --gpus all)"]
    wanted = [what for what in (_tensorrt(), _polygraphy()) if what]
    if wanted:
        missing.append(f"{' and '.join(wanted)} ({INSTALL})")
    elif gpu and not _cuda_runtime():
        missing.append("CUDA's runtime libcudart.so (its folder in LD_LIBRARY_PATH)")
    if missing or not gpu:
        instead = "; export/to_onnx.py serves on this GPU without TensorRT" if gpu else ""
        raise Unavailable(f"TensorRT: missing {', and '.join(missing)}{instead}")
    return gpu


def require_for_server(version: str | None = None, version_compatible: bool = False) -> Gpu:
    """Raises Unavailable, or VersionMismatch for another TensorRT in the server (default: this machine's)."""
    gpu = require()
    if server := version or server_version():
        import tensorrt

        check_server(tensorrt.__version__, server, version_compatible)
    return gpu


def _tensorrt() -> str | None:
    """The fault, if any."""
    wanted = f"TensorRT {' or '.join(TENSORRT_MAJORS)}"
    try:
        import tensorrt
    except ImportError as error:
        broken = importlib.util.find_spec("tensorrt")  # installed, but a library is missing
        return f"{wanted}, found {' '.join(str(error).split())}," if broken else wanted
    version: str = tensorrt.__version__
    return None if version.split(".")[0] in TENSORRT_MAJORS else f"{wanted}, found {version},"


def _polygraphy() -> str | None:
    return None if importlib.util.find_spec("polygraphy") else "Polygraphy"


def _cuda_runtime() -> bool:
    """Adds the folders of wheels after CUDA 12, which Polygraphy does not know."""
    from polygraphy import cuda
    from polygraphy.exception import PolygraphyException
    from polygraphy.logger import G_LOGGER

    nvidia = importlib.util.find_spec("nvidia")
    places = (nvidia.submodule_search_locations or []) if nvidia else []
    found = {str(path.parent) for place in places for path in Path(place).glob("*/lib/libcudart.so*")}
    known = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join([*([known] if known else []), *sorted(found)])
    try:
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
            cuda.wrapper()
    except (OSError, PolygraphyException):
        return False
    return True
