"""One-line errors: a foreign package that hides ours, a missing extra, Ctrl-C, the system's.

Importing it installs the first three. In: an error that nothing has caught. Out: its line, else the usual traceback.
`one_line_errors` ends a command so.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

HERE = Path(__file__).resolve().parent
PACKAGES = ("common", "models", "export", "serving", "clients", "benchmarks")

# Extra -> packages that it brings.
EXTRAS = {
    "base": ("jsonschema", "safetensors", "scipy", "sklearn", "tabulate", "torch"),
    "rewrite": ("onnx", "onnx_ir", "onnx_shape_inference", "onnxruntime"),
    "client": ("PIL", "tritonclient"),
    "serve": ("prometheus_client",),
    "train": ("kornia", "matplotlib"),
    "web": ("flask", "waitress"),
    "foreign": ("timm", "transformers"),
}


def foreign_package(error: BaseException) -> str | None:
    package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    spec = find_spec(package) if package in PACKAGES else None
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""] if spec else []
    if not places or Path(places[0]).resolve().parent == HERE:
        return None
    folder = Path(places[0]).parent
    beside = folder == HERE.parent  # in a wheel HERE is a folder of site-packages
    remedy = "give vitbn an environment of its own" if beside else "remove it from PYTHONPATH"
    return f"Error: expected the package {package} of {HERE}, found another in {folder}: {remedy}"


def missing_package(error: BaseException) -> str | None:
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    for extra in (extra for extra, packages in EXTRAS.items() if name in packages):
        return f"Error: expected {name}, found none; install it: {install(extra)}"
    return None


def install(extra: str) -> str:
    """The command that installs an extra: with the checkout's constraints, else from where vitbn came."""
    constraints = HERE / "constraints.txt"
    if not constraints.is_file():
        return f"pip install {shlex.quote(f'vitbn[{extra}]{_origin()}')}"
    typed = Path(constraints.name)
    here = typed.is_file() and typed.samefile(constraints)
    folder, file = (".", constraints.name) if here else (str(HERE), shlex.quote(str(constraints)))
    return f"pip install -c {file} -e {shlex.quote(f'{folder}[{extra}]')}"


def _origin() -> str:
    """` @ URL` of a file, folder or repository that vitbn was installed from; empty for an index. Source: PEP 610."""
    try:
        recorded = json.loads(distribution("vitbn").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return ""
    if "vcs_info" in recorded:
        about = recorded["vcs_info"]
        return f" @ {about['vcs']}+{recorded['url']}@{about['commit_id']}"
    return f" @ {recorded['url']}" if recorded else ""


def in_words(error: BaseException) -> str:
    """The system's errors as `FILE: reason`, without their number; the text of others."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"


def is_ours(error: Exception) -> bool:
    """Whether the project defines the error: its message is for users."""
    return type(error).__module__.partition(".")[0] in PACKAGES


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns the system's errors and those that the project defines into ClickException. Also decorates a command."""
    import click

    try:
        yield
    except click.ClickException:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and not is_ours(error):
            raise
        raise click.ClickException(in_words(error)) from error


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    line = "Aborted!" if kind is KeyboardInterrupt else foreign_package(error) or missing_package(error)
    if line is None:
        sys.__excepthook__(kind, error, trace)
    else:
        print(line, file=sys.stderr)


sys.excepthook = _excepthook
