"""One-line errors for a foreign package that hides ours, and for a missing extra. Importing it installs them.

In: an error that nothing has caught. Out: its line, else the usual traceback.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

HERE = Path(__file__).resolve().parent
PACKAGES = ("models", "export", "serving", "clients", "benchmarks")

# Extra -> packages that it brings.
EXTRAS = {
    "base": ("jsonschema", "safetensors", "scipy", "sklearn", "tabulate", "torch"),
    "rewrite": ("onnx", "onnx_ir", "onnx_shape_inference", "onnxruntime"),
    "client": ("PIL", "tritonclient"),
    "serve": ("prometheus_client",),
    "train": ("kornia", "matplotlib"),
    "web": ("flask", "waitress"),
}


def foreign_package(error: BaseException) -> str | None:
    package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    spec = find_spec(package) if package in PACKAGES else None
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""] if spec else []
    if not places or Path(places[0]).resolve().parent == HERE:
        return None
    folder = Path(places[0]).parent
    return f"Error: expected the package {package} of {HERE}, found another in {folder}: remove it from PYTHONPATH"


def missing_package(error: BaseException) -> str | None:
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    for extra in (extra for extra, packages in EXTRAS.items() if name in packages):
        return f"Error: expected {name}, found none; install it: pip install -c constraints.txt -e '.[{extra}]'"
    return None


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    line = foreign_package(error) or missing_package(error)
    if line is None:
        sys.__excepthook__(kind, error, trace)
    else:
        print(line, file=sys.stderr)


sys.excepthook = _excepthook
