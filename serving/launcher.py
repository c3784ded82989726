"""The console script `tritonserver`: replaces its process by Triton's.

In: Triton's arguments. Out: the running server. A native server (on PATH or in /opt/tritonserver) gets the arguments
unchanged. Without a native server nvidia-pytriton's server starts, with other defaults: loopback only, this project's
backends, this environment's Python, explicit mode.
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
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from serving import control_key, restricted_api
from serving.parse_triton_arguments import (
    BY_PRIORITY,
    REPOSITORY,
    REPOSITORY_OPTIONS,
    Arguments,
    LauncherError,
    without,
)
from serving.ports import taken
from serving.preflight import (
    CHOOSE_CACHE,
    allow_descriptors,
    cache_folder,
    check_repositories,
    check_shared_memory,
)
from vitbn_packages import install

CONTAINER_SERVER = Path("/opt/tritonserver/bin/tritonserver")
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
ENGINES = ("onnxruntime", "openvino")
ADVICE = "put `vitbn proxy` before it or run a current container (triton_repo/README.md, Secure)"


def native_server(search_path: str) -> Path | None:
    """The `tritonserver` on `search_path`, else in NVIDIA's container, that is not this launcher; or None."""
    candidates = [Path(folder, "tritonserver") for folder in search_path.split(os.pathsep)]
    for candidate in [*candidates, CONTAINER_SERVER]:
        with suppress(OSError):  # such as a folder that this user may not read
            if candidate.is_file() and os.access(candidate, os.X_OK) and not _is_launcher(candidate):
                return candidate
    return None


def _is_launcher(program: Path) -> bool:
    with program.open("rb") as script:
        return b"serving.launcher" in script.read(4096)


def pytriton_folder() -> Path:
    """The folder of nvidia-pytriton's package. Raises LauncherError."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise LauncherError(f"no native tritonserver found, and nvidia-pytriton is not installed: {install('serve')}")
    check_numpy(importlib.metadata.version("numpy"))
    return Path(spec.origin).parent


def check_numpy(version: str) -> None:
    """Raises LauncherError for numpy 2, with which the stub would answer 0 bytes without an error."""
    if int(version.split(".")[0]) >= 2:
        raise LauncherError(f"nvidia-pytriton needs numpy below 2, found numpy {version}: pip install 'numpy<2'")


def backend_files(pytriton: Path, python_version: str = PYTHON_VERSION) -> dict[str, Path]:
    """Returns path in --backend-directory -> source. Raises LauncherError if nvidia-pytriton lacks this Python."""
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


def assemble_backends(files: Mapping[str, Path], cache: Path) -> Path:
    """Makes a folder in `cache` for --backend-directory, named by a hash of `files`, and reuses it at the next start.

    A rename creates the folder, so no other launcher sees an incomplete folder. Raises LauncherError.
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
        if not folder.is_dir():  # else another launcher was faster
            raise LauncherError(f"cannot assemble the backends in {cache}: {error}; {CHOOSE_CACHE}") from error
    return folder


def has_cuda() -> bool:
    """Whether the installed ONNX Runtime can compute on a GPU."""
    with suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version("onnxruntime-gpu"))
    return False


def server_environment(pytriton: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """The server's environment: `inherited`, with this Python and the server's libraries first in the search paths."""
    # Without CUDA in ONNX Runtime, hidden GPUs make KIND_AUTO mean the CPU, and Triton refuses KIND_GPU.
    hidden_gpus = {} if has_cuda() else {"CUDA_VISIBLE_DEVICES": ""}
    libraries = [str(pytriton.parent / "nvidia_pytriton.libs"), str(Path(sys.base_prefix, "lib"))]
    programs = str(Path(sys.executable).parent)  # the stub imports packages of the first python3 on PATH
    return {
        "ORT_DISABLE_TELEMETRY": "1",
        **inherited,
        **hidden_gpus,
        "LD_LIBRARY_PATH": os.pathsep.join([*libraries, *filter(None, [inherited.get("LD_LIBRARY_PATH")])]),
        "PATH": os.pathsep.join([programs, inherited.get("PATH", os.defpath)]),
    }


def check_stub(stub: Path, environment: Mapping[str, str]) -> None:
    """Raises LauncherError if the stub cannot run, as without libpython."""
    result = subprocess.run([stub], env=environment, capture_output=True, text=True)
    if result.returncode == 127:  # the dynamic loader's code; a working stub returns 1 without arguments
        reason = " ".join(result.stderr.split())
        raise LauncherError(
            f"Triton's Python stub cannot run: {reason}"
            f" (on Debian and Ubuntu: apt-get install libpython{PYTHON_VERSION})"
        )


def shell_safe(folder: str) -> str:
    """Returns `folder`, or the path of an open descriptor under /proc if a shell would split or expand `folder`.

    Triton starts the stub by `bash -c` without quotes; with a space in a path the stub never answers. The descriptor
    survives exec.
    """
    if shlex.quote(folder) == folder or not Path(folder).is_dir():
        return folder
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.set_inheritable(descriptor, True)
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def shell_safe_words(arguments: Arguments) -> list[str]:
    """The words for Triton, with shell-safe paths of the repositories."""
    repositories = [f"{REPOSITORY}={shell_safe(folder)}" for folder in arguments.repositories]
    words = without(arguments.words, REPOSITORY_OPTIONS)
    return repositories + [word for word in words if word != restricted_api.OPEN]


def check_ports(arguments: Arguments) -> None:
    """Raises LauncherError for a taken port: Triton reports it only after it has loaded all models."""
    arguments.check_ports()
    if problem := taken(arguments.listening_urls()):
        raise LauncherError(problem)


def control_defaults(arguments: Arguments) -> list[str]:
    """Options for explicit mode and all models unless `arguments` choose a mode: Triton's default loads none later."""
    if arguments.last("--model-control-mode", ""):
        return []
    return ["--model-control-mode=explicit", *([] if arguments.last("--load-model", "") else ["--load-model=*"])]


def guard_control(arguments: Arguments) -> list[str]:
    """Draws a key, stores it for this user, returns the options by which Triton requires it. Raises LauncherError."""
    key = control_key.draw()
    options = restricted_api.options(arguments, key)
    if guarded := restricted_api.user_guarded(arguments):
        say(f"your key guards {', '.join(guarded)}; the key of this start guards what else changes the server")
    if places := restricted_api.exposed(arguments):
        say(f"warning: {' and '.join(places)}: one HTTP request from there can end Triton 2.51; {ADVICE}")
    if options and arguments.listening_urls():
        try:
            control_key.keep(arguments.control_ports, key)
        except control_key.KeyFailed as failure:
            say(f"warning: {failure}; nobody can change this server while it runs")
    return options


def say(text: str) -> None:
    """Writes a line to stderr."""
    print(f"tritonserver: {text}", file=sys.stderr, flush=True)


def launch(words: Sequence[str]) -> NoReturn:
    """Replaces this process by the server's. Raises LauncherError if no server can start."""
    native = native_server(os.environ.get("PATH", os.defpath))
    if native is not None:
        os.execv(native, [str(native), *(word for word in words if word != restricted_api.OPEN)])
    arguments = Arguments(words)
    check_repositories(arguments)
    passed_on = shell_safe_words(arguments)
    check_ports(arguments)
    allow_descriptors()
    check_shared_memory(arguments)
    guards = guard_control(arguments)
    pytriton = pytriton_folder()
    environment = server_environment(pytriton, os.environ)
    files = backend_files(pytriton)
    check_stub(files["python/triton_python_backend_stub"], environment)
    backends = assemble_backends(files, cache_folder(os.environ))
    # Triton takes the last of equal options, so the user's stand at the end.
    defaults = [f"--{service}-address=127.0.0.1" for service in ("http", "grpc", "metrics")]
    defaults += [f"--backend-directory={shell_safe(str(backends))}", BY_PRIORITY, *control_defaults(arguments)]
    defaults.append(f"--cache-directory={pytriton / 'tritonserver' / 'caches'}")
    server = pytriton / "tritonserver" / "bin" / "tritonserver"
    os.execve(server, [str(server), *defaults, *guards, *passed_on], environment)


def main() -> None:
    try:
        launch(sys.argv[1:])
    except LauncherError as error:
        sys.exit(f"tritonserver: {error}")


if __name__ == "__main__":
    main()
