"""Imports a backend's model.py as Triton's stub does."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from serving.launcher import pytriton_folder

BACKENDS = Path(__file__).parents[2] / "serving" / "backends"


@contextmanager
def imported(engine: str) -> Iterator[ModuleType]:
    """Lacks the names that only Triton's stub provides."""
    folders = [str(BACKENDS / engine), str(pytriton_folder() / "tritonserver" / "backends" / "python")]
    sys.path[:0] = folders
    try:
        yield importlib.import_module("model")
    finally:
        sys.modules.pop("model", None)
        del sys.path[: len(folders)]
