"""The server's TensorRT: a plan loads only in the version that built it.

In: this machine's libraries, or what the user says. Out: nothing, or VersionMismatch.
"""

from __future__ import annotations

import re
from pathlib import Path

from export.errors import ExportError

BACKEND = "opt/tritonserver/backends/tensorrt"  # in NVIDIA's containers
LIBRARIES = ("usr/lib/*-linux-gnu", "usr/local/tensorrt/lib", "usr/local/tensorrt/targets/*/lib", "usr/lib64")


class VersionMismatch(ExportError):
    pass


def server_version(root: Path = Path("/")) -> str | None:
    """The version in the name of a native Triton's `libnvinfer` here, such as 10.4.0."""
    if not (root / BACKEND).is_dir():
        return None
    files = (path.name for folder in LIBRARIES for path in root.glob(f"{folder}/libnvinfer.so.*.*.*"))
    return max((name.partition(".so.")[2] for name in files), key=numbers, default=None)


def check_server(built_by: str, server: str, version_compatible: bool) -> None:
    """Raises VersionMismatch unless TensorRT `server` loads a plan of TensorRT `built_by`.

    A version-compatible plan also loads in later versions of its major version.
    """
    ours, theirs = numbers(built_by)[:3], numbers(server)[:3]
    if not theirs:
        raise VersionMismatch(f"TensorRT: expected the server's version such as 10.4.0, found {server!r}")
    known = min(len(ours), len(theirs))
    if known and ours[:known] == theirs[:known]:
        return
    if version_compatible and ours[:1] == theirs[:1] and ours < theirs:
        return
    wanted = ".".join(map(str, theirs))
    later = f" or, to be version-compatible, an older {theirs[0]}" if version_compatible else ""
    raise VersionMismatch(
        f"TensorRT: expected the server's {server}{later}, found {built_by} here; a plan loads only in the version "
        f"that built it (pip install 'tensorrt=={wanted}.*')"
    )


def numbers(version: str) -> tuple[int, ...]:
    """10.13.3.9.post1 -> (10, 13, 3, 9)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition(".post")[0]))
