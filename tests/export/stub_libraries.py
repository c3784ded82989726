"""An environment of the stub device's libraries."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.measure.stub_device import make_libraries

BINDINGS_10 = Path(__file__).parents[2] / ".tensorrt"  # the oldest supported TensorRT: make bindings

FRONTEND = "from tensorrt_bindings import *\nfrom tensorrt_bindings import __version__\n"


def environment(folder: Path, *left_out: str, major: int = 11) -> dict[str, str]:
    """Builds them in `folder`; returns an environment where Python finds them and a package `tensorrt`.

    `major`: 11, from this environment, or 10, from `BINDINGS_10`.
    """
    make_libraries(folder, *left_out, major=major)
    package = folder / "packages" / "tensorrt"
    if "tensorrt" not in left_out:
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(FRONTEND)
    packages = os.pathsep.join([str(package.parent), *([str(BINDINGS_10)] if major == 10 else [])])
    return os.environ | {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": packages, "OMP_NUM_THREADS": "1"}


def python(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
