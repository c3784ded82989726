"""Prints errors as one line instead of a traceback.

Importing this module installs a hook for errors that no code caught: another package that hides a folder of this
project, a missing extra, Ctrl-C, a full disk under standard output. Other errors keep their traceback.
`one_line_errors` does the same in a command, for errors of the operating system and errors that the project defines.
Importing it also opens the standard streams that the caller has closed.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from traceback import walk_tb
from types import TracebackType

HERE = Path(__file__).resolve().parent
PACKAGES = ("common", "models", "export", "serving", "clients", "benchmarks")

# Extra of pyproject.toml -> packages that it installs.
EXTRAS = {
    "base": ("einops", "jsonschema", "safetensors", "scipy", "sklearn", "tabulate", "torch", "tqdm"),
    "rewrite": ("onnx", "onnx_ir", "onnx_shape_inference", "onnxruntime"),
    "client": ("PIL", "aiohttp", "tritonclient"),
    "serve": ("prometheus_client", "psutil"),
    "deploy": ("jinja2",),
    "train": ("kornia", "matplotlib"),
    "web": ("flask", "waitress"),
    "bulk": ("fsspec", "pyarrow"),
    "ray": ("ray",),
    "foreign": ("onnxruntime_genai", "timm", "transformers"),
}


def foreign_package(error: BaseException) -> str | None:
    """The line for an import that failed because another package hides a folder of this project, else None."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    spec = find_spec(package) if package in PACKAGES else None
    paths = [*(spec.submodule_search_locations or ()), spec.origin or ""] if spec else []
    if not paths or Path(paths[0]).resolve().parent == HERE:
        return None
    folder = Path(paths[0]).parent
    in_site_packages = folder == HERE.parent  # a wheel installs this file in a folder of site-packages
    remedy = "give vitbn an environment of its own" if in_site_packages else "remove it from PYTHONPATH"
    return f"Error: expected the package {package} of {HERE}, found another in {folder}: {remedy}"


def missing_package(error: BaseException) -> str | None:
    """The line for a missing package of an extra, with the command that installs the extra; else None."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    for extra in (extra for extra, packages in EXTRAS.items() if name in packages):
        return f"Error: expected {name}, found none; install it: {install(extra)}"
    return None


def install(extra: str) -> str:
    """The command that installs an extra: in a checkout with its constraints, else from vitbn's source."""
    constraints = HERE / "constraints.txt"
    if not constraints.is_file():
        return f"pip install {shlex.quote(f'vitbn[{extra}]{_origin()}')}"
    relative = Path(constraints.name)
    in_checkout = relative.is_file() and relative.samefile(constraints)
    folder, file = (".", constraints.name) if in_checkout else (str(HERE), shlex.quote(str(constraints)))
    return f"pip install -c {file} -e {shlex.quote(f'{folder}[{extra}]')}"


def _origin() -> str:
    """` @ URL` of the file, folder or repository that vitbn was installed from; empty for an index. Source: PEP 610."""
    try:
        origin = json.loads(distribution("vitbn").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return ""
    if "vcs_info" in origin:
        version_control = origin["vcs_info"]
        return f" @ {version_control['vcs']}+{origin['url']}@{version_control['commit_id']}"
    return f" @ {origin['url']}" if origin else ""


def in_words(error: BaseException) -> str:
    """The error's message as a single line; for an error of the operating system `FILE: reason`, without its number."""
    from common.printable import printable  # not above: another `common` may hide ours

    if not isinstance(error, OSError) or not error.strerror:
        return printable(str(error))
    name = _output_name() if is_of_output(error) else error.filename
    return error.strerror if name is None else printable(f"{name}: {error.strerror}")


def is_of_output(error: BaseException) -> bool:
    """Whether a `click.echo` failed, as on a full disk."""
    if not isinstance(error, OSError):
        return False
    import click

    frames = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    return frames[-1:] == [click.echo.__code__]


def _output_name() -> str:
    """Standard output, with its path if it is a file. Discards its unwritten text, which would fail again."""
    try:
        path = str(Path("/proc/self/fd/1").readlink())  # a pipe has no path
    except OSError:
        path = ""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return f"standard output ({path})" if path.startswith("/") else "standard output"


def is_ours(error: Exception) -> bool:
    """Whether this project defines the error's class, whose messages are for users."""
    return type(error).__module__.partition(".")[0] in PACKAGES


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turns errors of the system and of this project into ClickException, in a `with` block or as a decorator.

    A closed pipe ends the command without a word: click sees to it.
    """
    import click

    from common.printable import printable

    try:
        yield
    except BrokenPipeError:
        raise
    except click.ClickException as error:
        if type(error) is not click.ClickException:
            raise
        raise click.ClickException(printable(error.message)) from error
    except Exception as error:
        if not isinstance(error, OSError) and not is_ours(error):
            raise
        raise click.ClickException(in_words(error)) from error


def _interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C is the error or lies behind it: torch's exporter fails otherwise when it is interrupted."""
    behind = error.__cause__ or error.__context__
    return isinstance(error, KeyboardInterrupt) or (behind is not None and _interrupted(behind))


def _excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    line = "Aborted!" if _interrupted(error) else foreign_package(error) or missing_package(error)
    if line is None and is_of_output(error):
        line = f"Error: {in_words(error)}"
    if line is None:
        sys.__excepthook__(kind, error, trace)
    else:
        print(line, file=sys.stderr)


def _open_streams() -> None:
    """Opens a standard stream that the caller has closed, as by `2>&-`: the next file would take its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode))


_open_streams()
sys.excepthook = _excepthook
