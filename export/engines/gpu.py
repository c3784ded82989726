"""Checks what a TensorRT build needs: a GPU, TensorRT, Polygraphy, CUDA's runtime, and the server's version."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from export.errors import ExportError, Unavailable

TENSORRT_MAJORS = (10, 11)
COMPUTE_CAPABILITY = (75, 76)  # major, minor: attributes of cuda.h
BACKEND = "opt/tritonserver/backends/tensorrt"  # in NVIDIA's containers
LIBRARIES = ("usr/lib/*-linux-gnu", "usr/local/tensorrt/lib", "usr/local/tensorrt/targets/*/lib", "usr/lib64")


@dataclass(frozen=True)
class Gpu:
    """`compute_capability`: major and minor version, such as "9.0"."""

    name: str
    compute_capability: str


def find_gpu() -> Gpu | None:
    """The first GPU, or None. Asks the driver's library, so a build of PyTorch without CUDA does not matter."""
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
    """The first GPU. Raises Unavailable if it or a library is missing."""
    gpu = find_gpu()
    if not gpu:
        raise Unavailable("TensorRT: missing an NVIDIA GPU (a machine with its driver; in a container, --gpus all)")
    try:
        _load_libraries()
    except (ImportError, OSError) as error:
        from vitbn_packages import install

        majors = " or ".join(map(str, TENSORRT_MAJORS))
        raise Unavailable(
            f"TensorRT: expected TensorRT {majors}, Polygraphy and CUDA's runtime ({install('tensorrt')}), "
            f"found {' '.join(str(error).split())}; export/to_onnx.py serves on this GPU without TensorRT"
        ) from error
    return gpu


def require_for_server(server: str | None = None, version_compatible: bool = False) -> Gpu:
    """The first GPU, for a plan that a server with TensorRT version `server` can load (default: this machine's server).

    A plan loads only in the version that built it; a version-compatible plan also in later ones of its major version.
    Raises Unavailable as `require`, and ExportError if the server's version cannot load what is built here.
    """
    gpu = require()
    if server := server or server_version():
        import tensorrt

        ours, theirs = numbers(tensorrt.__version__), numbers(server)
        length = min(len(ours), len(theirs))  # "10.4" names any patch of it
        later = version_compatible and ours[:1] == theirs[:1] and ours < theirs
        if ours[:length] != theirs[:length] and not later:
            older = f" or, to be version-compatible, an older {theirs[0]}" if version_compatible else ""
            raise ExportError(
                f"TensorRT: expected the server's {server}{older}, found {tensorrt.__version__} here; a plan loads "
                f"only in the version that built it (pip install 'tensorrt=={'.'.join(map(str, theirs))}.*')"
            )
    return gpu


def server_version(root: Path = Path("/")) -> str | None:
    """TensorRT's version, such as 10.4.0, in the name of the library of a Triton on this machine; None without it."""
    if not (root / BACKEND).is_dir():
        return None
    files = (path.name for folder in LIBRARIES for path in root.glob(f"{folder}/libnvinfer.so.*.*.*"))
    return max((name.partition(".so.")[2] for name in files), key=numbers, default=None)


def numbers(version: str) -> tuple[int, ...]:
    """10.13.3.9.post1 -> (10, 13, 3): patches of a wheel load each other's plans."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition(".post")[0]))[:3]


def _load_libraries() -> None:
    """Raises ImportError or OSError. Polygraphy does not know the folders of CUDA's wheels after CUDA 12."""
    import tensorrt
    from polygraphy import cuda
    from polygraphy.exception import PolygraphyException
    from polygraphy.logger import G_LOGGER

    if numbers(tensorrt.__version__)[0] not in TENSORRT_MAJORS:
        raise ImportError(f"TensorRT {tensorrt.__version__}")
    nvidia = importlib.util.find_spec("nvidia")
    places = (nvidia.submodule_search_locations or []) if nvidia else []
    folders = {str(path.parent) for place in places for path in Path(place).glob("*/lib/libcudart.so*")}
    search_path = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join([*([search_path] if search_path else []), *sorted(folders)])
    try:
        with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
            cuda.wrapper()
    except PolygraphyException as error:
        raise OSError("no CUDA runtime libcudart.so in LD_LIBRARY_PATH") from error
