"""The console script `tritonserver`: Triton's arguments in, the running server out, in the same process.

A native server (on PATH or in /opt/tritonserver) is executed untouched. Where there is none, the server inside PyPI's
nvidia-pytriton is executed with the same arguments after three defaults: it listens on 127.0.0.1 alone, it finds the
backends of this project, and its Python stub runs in this environment.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import click

CONTAINER_SERVER = Path("/opt/tritonserver/bin/tritonserver")
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
ENGINES = ("onnxruntime", "openvino")
REPOSITORY_OPTIONS = ("--model-repository", "--model-store")


class LauncherError(RuntimeError):
    """No server can be started here; the message is one line that says what is missing."""


def native_server(search_path: str) -> Path | None:
    """The first native tritonserver on `search_path` (as in $PATH), else the one of NVIDIA's container, else None."""
    candidates = [Path(folder, "tritonserver") for folder in search_path.split(os.pathsep)]
    for candidate in [*candidates, CONTAINER_SERVER]:
        if candidate.is_file() and os.access(candidate, os.X_OK) and not _is_launcher(candidate):
            return candidate
    return None


def _is_launcher(program: Path) -> bool:
    """Whether `program` is the console script of this module, in this environment or in another one."""
    with program.open("rb") as script:
        return b"serving.launcher" in script.read(4096)


def pytriton_folder() -> Path:
    """The installed `pytriton` package, not imported; raises LauncherError where it is missing or would not work."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise LauncherError(
            "no native tritonserver found, and nvidia-pytriton is not installed: pip install 'nvidia-pytriton<0.8'"
        )
    check_numpy(importlib.metadata.version("numpy"))
    return Path(spec.origin).parent


def check_numpy(version: str) -> None:
    """Raise LauncherError for numpy 2, under which the Python stub answers every request with 0 bytes and no error."""
    if int(version.split(".")[0]) >= 2:
        raise LauncherError(f"nvidia-pytriton needs numpy below 2, found numpy {version}: pip install 'numpy<2'")


def backend_files(pytriton: Path, python_version: str = PYTHON_VERSION) -> dict[str, Path]:
    """What the backend folder holds: its relative names -> where they are; raises LauncherError without a stub."""
    stubs = pytriton / "tritonserver" / "python_backend_stubs"
    stub = stubs / python_version / "triton_python_backend_stub"
    if not stub.is_file():
        supported = ", ".join(sorted(folder.name for folder in stubs.glob("3.*")))
        raise LauncherError(f"nvidia-pytriton supports Python {supported}, found Python {python_version}")
    python_backend = pytriton / "tritonserver" / "backends" / "python"
    ours = Path(__file__).resolve().parent / "backends"
    return {
        "python/libtriton_python.so": python_backend / "libtriton_python.so",
        "python/triton_python_backend_utils.py": python_backend / "triton_python_backend_utils.py",
        "python/triton_python_backend_stub": stub,
        **{engine: ours / engine for engine in ENGINES},
    }


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where assembled backend folders are kept."""
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitbn"


def assemble_backends(files: Mapping[str, Path], cache: Path) -> Path:
    """A folder for --backend-directory with `files` in it, made in `cache` unless it is there already.

    It is built beside and renamed, so two launchers at once never see half of it. Raises LauncherError if `cache`
    cannot be written.
    """
    contents = [f"{name} {source} {source.stat().st_mtime_ns}" for name, source in files.items() if source.is_file()]
    contents += [f"{name} {source}" for name, source in files.items() if source.is_dir()]
    folder = cache / f"backends-{hashlib.sha256(repr(contents).encode()).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="assembling-", dir=cache) as parent:
            building = Path(parent, "backends")
            for name, source in files.items():
                target = building / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if target.suffix == ".so":  # Triton refuses a library that resolves to another folder
                    shutil.copy(source, target)
                else:
                    target.symlink_to(source)
            building.rename(folder)
    except OSError as error:
        if not folder.is_dir():  # otherwise another launcher was faster
            raise LauncherError(f"cannot assemble the backends in {cache}: {error}") from error
    return folder


def server_environment(pytriton: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """`inherited` with the server's libraries, this interpreter's libpython and this environment's python3 first."""
    libraries = [str(pytriton.parent / "nvidia_pytriton.libs"), str(Path(sys.base_prefix, "lib"))]
    programs = str(Path(sys.executable).parent)  # the stub takes its environment from the first python3 on PATH
    return {
        **inherited,
        "LD_LIBRARY_PATH": os.pathsep.join([*libraries, *filter(None, [inherited.get("LD_LIBRARY_PATH")])]),
        "PATH": os.pathsep.join([programs, inherited.get("PATH", os.defpath)]),
    }


def check_stub(stub: Path, environment: Mapping[str, str]) -> None:
    """Raise LauncherError where the stub cannot run, as with a Python built without its shared library."""
    result = subprocess.run([stub], env=environment, capture_output=True, text=True)
    if result.returncode == 127:  # the dynamic loader's; without arguments the stub itself returns 1
        reason = " ".join(result.stderr.split())
        raise LauncherError(
            f"Triton's Python stub cannot run: {reason}"
            f" (on Debian and Ubuntu: apt-get install libpython{PYTHON_VERSION})"
        )


def shell_safe(folder: str) -> str:
    """`folder`, or where a shell would split or expand its name, another name of it that no shell touches.

    Triton starts the stub with an unquoted `bash -c`, so a space in a path ends in a stub that never answers. The other
    name is that of an open descriptor of this process, which stays the server's own through exec.
    """
    if shlex.quote(folder) == folder or not Path(folder).is_dir():
        return folder
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.set_inheritable(descriptor, True)
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def shell_safe_repositories(arguments: Sequence[str]) -> list[str]:
    """`arguments` with every model repository made `shell_safe`: both `--option=value` and `--option value`."""
    safe: list[str] = []
    for previous, argument in zip(["", *arguments], arguments, strict=False):
        option, _, value = argument.partition("=")
        if value and option in REPOSITORY_OPTIONS:
            safe.append(f"{option}={shell_safe(value)}")
        else:
            safe.append(shell_safe(argument) if previous in REPOSITORY_OPTIONS else argument)
    return safe


def launch(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by Triton with `arguments`; raises LauncherError where no server can be started."""
    native = native_server(os.environ.get("PATH", os.defpath))
    if native is not None:
        os.execv(native, [str(native), *arguments])
    pytriton = pytriton_folder()
    environment = server_environment(pytriton, os.environ)
    files = backend_files(pytriton)
    check_stub(files["python/triton_python_backend_stub"], environment)
    backends = assemble_backends(files, cache_folder(os.environ))
    # Of an option that is given twice Triton takes the last, so the user's own arguments prevail over these.
    defaults = [f"--{service}-address=127.0.0.1" for service in ("http", "grpc", "metrics")]
    defaults.append(f"--backend-directory={shell_safe(str(backends))}")
    server = pytriton / "tritonserver" / "bin" / "tritonserver"
    os.execve(server, [str(server), *defaults, *shell_safe_repositories(arguments)], environment)


def main() -> None:
    """The console script."""
    try:
        launch(sys.argv[1:])
    except LauncherError as error:
        sys.exit(f"tritonserver: {error}")


# Without a --help of its own, --help reaches Triton like every other argument.
@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(arguments: tuple[str, ...]) -> None:
    """Run tritonserver; every argument is Triton's own."""
    try:
        launch(arguments)
    except LauncherError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
