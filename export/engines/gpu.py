"""What an engine build needs: a GPU, TensorRT, Polygraphy, CUDA's runtime, and the server's TensorRT."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from export.errors import ExportError, Unavailable

TENSORRT_MAJORS = (10, 11)
INSTALL = "pip install -c constraints.txt -e '.[tensorrt]'"
COMPUTE_CAPABILITY = (75, 76)  # major, minor: attributes of cuda.h
BACKEND = "opt/tritonserver/backends/tensorrt"  # in NVIDIA's containers
LIBRARIES = ("usr/lib/*-linux-gnu", "usr/local/tensorrt/lib", "usr/local/tensorrt/targets/*/lib", "usr/lib64")


class VersionMismatch(ExportError):
    pass


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
        or driver.cuDeviceGetAttribute(ctypes.byref(major), COMPUTE_CAPABILITY[0], device)
        or driver.cuDeviceGetAttribute(ctypes.byref(minor), COMPUTE_CAPABILITY[1], device)
    )
    return None if failed else Gpu(name.value.decode(), f"{major.value}.{minor.value}")


def require() -> Gpu:
    """Raises Unavailable."""
    gpu, missing = find_gpu(), list(_missing_libraries())
    if not gpu:
        missing.insert(0, "an NVIDIA GPU (a machine with its driver; in a container, --gpus all)")
    if missing or not gpu:
        instead = "; export/to_onnx.py serves on this GPU without TensorRT" if gpu else ""
        raise Unavailable(f"TensorRT: missing {', and '.join(missing)}{instead}")
    return gpu


def require_for_server(server: str | None = None, version_compatible: bool = False) -> Gpu:
    """Raises Unavailable, or VersionMismatch for another TensorRT in the `server` (default: this machine's).

    A plan loads only in the version that built it; a version-compatible plan also in later ones of its major version.
    """
    gpu = require()
    if server := server or server_version():
        import tensorrt

        ours, theirs = numbers(tensorrt.__version__), numbers(server)
        known = min(len(ours), len(theirs))
        later = version_compatible and ours[:1] == theirs[:1] and ours < theirs
        if ours[:known] != theirs[:known] and not later:
            older = f" or, to be version-compatible, an older {theirs[0]}" if version_compatible else ""
            raise VersionMismatch(
                f"TensorRT: expected the server's {server}{older}, found {tensorrt.__version__} here; a plan loads "
                f"only in the version that built it (pip install 'tensorrt=={'.'.join(map(str, theirs))}.*')"
            )
    return gpu


def server_version(root: Path = Path("/")) -> str | None:
    """The version in the name of a native Triton's `libnvinfer` here, such as 10.4.0."""
    if not (root / BACKEND).is_dir():
        return None
    files = (path.name for folder in LIBRARIES for path in root.glob(f"{folder}/libnvinfer.so.*.*.*"))
    return max((name.partition(".so.")[2] for name in files), key=numbers, default=None)


def numbers(version: str) -> tuple[int, ...]:
    """10.13.3.9.post1 -> (10, 13, 3): patches of a wheel load each other's plans."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition(".post")[0]))[:3]


def _missing_libraries() -> Iterator[str]:
    wanted = f"TensorRT {' or '.join(map(str, TENSORRT_MAJORS))}"
    try:
        import tensorrt

        found = "" if numbers(tensorrt.__version__)[0] in TENSORRT_MAJORS else tensorrt.__version__
    except ImportError as error:  # of a library, if the package is there
        found = " ".join(str(error).split()) if importlib.util.find_spec("tensorrt") else "none"
    if found:
        yield f"{wanted}, found {found} ({INSTALL})"
    if not importlib.util.find_spec("polygraphy"):
        yield f"Polygraphy ({INSTALL})"
    elif not found and not _cuda_runtime():
        yield "CUDA's runtime libcudart.so (its folder in LD_LIBRARY_PATH)"


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
