"""A Triton server for a `with` block.

In: a model repository. Out: this environment's `tritonserver` as a child process on free loopback ports. Its processes,
shared memory and files end with the block or with this process.
"""

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from serving import key as control_key
from serving.control import DIRECT

CHILD = Path(__file__).with_name("child.py")
PORT_ATTEMPTS = 3
STOP_GRACE_S = 20.0
POLL_S = 0.05
REASON_LINES = 6
TAKEN = f"expected a free port, found {os.strerror(errno.EADDRINUSE)}"


class ServerFailed(RuntimeError):
    pass


@dataclass(frozen=True)
class Server:
    """URLs are HOST:PORT."""

    http_url: str
    grpc_url: str
    metrics_url: str
    supervisor_url: str  # its metrics, if any
    health_url: str  # the supervisor's verdict for a proxy
    log_path: Path
    pid: int

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")


@contextmanager
def running_server(
    repository: Path, arguments: Sequence[str] = (), timeout_s: float = 60, supervised: bool = False
) -> Iterator[Server]:
    """Yields when the server is ready; raises ServerFailed if it stops or is not ready in time.

    `arguments` are Triton's, except addresses and ports. `supervised`: `pid` is the supervisor's. Triton 2.51 seldom
    crashes while it starts: after a first crash it is started once more.
    """
    crashed = False
    with tempfile.TemporaryDirectory(prefix="tritonserver-") as folder:
        log_path = Path(folder, "server.log")
        for _ in range(PORT_ATTEMPTS):
            with _child(repository, arguments, log_path, supervised) as (process, server):
                ready = partial(answers, server.http_url, "v2/health/ready", 1.0)
                failure = wait_until_ready(process, ready, timeout_s)
                if failure is None:
                    yield server
                    return
            if process.returncode == -signal.SIGSEGV and not crashed:
                print(f"tritonserver on {repository} {failure} at its start: once more", file=sys.stderr)
                crashed = True
            elif "already in use" not in server.log():  # a port was taken first
                break
        raise ServerFailed(f"tritonserver on {repository} {failure}:\n{_reason(server.log())}")


@contextmanager
def _child(
    repository: Path, arguments: Sequence[str], log_path: Path, supervised: bool
) -> Iterator[tuple[subprocess.Popen[bytes], Server]]:
    services = ["http", "grpc", "metrics", *(["supervisor", "health"] if supervised else [])]
    ports = dict(zip(services, free_ports(len(services)), strict=True))
    program = ["serving.serve", "--supervised"] if supervised else ["serving.launcher"]
    command = [sys.executable, "-m", *program, f"--model-repository={repository}"]
    command += [f"--{service}-port={port}" for service, port in ports.items()]
    with log_path.open("wb") as log:
        process = spawn([*command, *arguments], log)
    urls = dict.fromkeys(("supervisor_url", "health_url"), "")
    urls |= {f"{service}_url": f"127.0.0.1:{port}" for service, port in ports.items()}
    try:
        yield process, Server(log_path=log_path, pid=process.pid, **urls)
    finally:
        _stop(process)
        control_key.forget([ports["http"], ports["grpc"]])


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def answers(url: str, path: str = "", timeout_s: float = 2.0) -> bool:
    """Whether HOST:PORT answers without an HTTP error."""
    with suppress(OSError), DIRECT.open(f"http://{url}/{path}", timeout=timeout_s):  # HTTP errors are OSError too
        return True
    return False


def is_taken(url: str) -> bool:
    """Whether something listens at HOST:PORT."""
    host, _, port = url.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host.strip("[]"), int(port)), family=family).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE  # other errors the server tells itself
    return False


def spawn(
    command: Sequence[str], log: IO[bytes] | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A child in its own session, which no Ctrl-C reaches; it ends with the thread that started it."""
    return subprocess.Popen(
        [sys.executable, "-IS", CHILD, str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
    )


def end(process: subprocess.Popen[bytes], grace_s: float) -> int:
    """SIGTERM, after `grace_s` SIGKILL; returns the exit code."""
    process.terminate()
    try:
        return process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], ready: Callable[[], bool], timeout_s: float) -> str | None:
    """The failure, if any."""
    deadline = time.monotonic() + timeout_s
    while process.poll() is None:
        if ready():
            return None
        if time.monotonic() > deadline:
            return f"was not ready after {timeout_s:g} s"
        time.sleep(POLL_S)
    return f"stopped with {end_of(process.returncode)}"


def end_of(code: int) -> str:
    """A child's end in words; Python gives a signal as a negative code."""
    return f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.strsignal(-code)})"


def _reason(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("E", "error"))]
    return "\n".join((errors or lines)[-REASON_LINES:])


def _stop(process: subprocess.Popen[bytes]) -> None:
    end(process, STOP_GRACE_S)
    # Stubs of a dead server remove their shared memory first.
    deadline = time.monotonic() + STOP_GRACE_S
    with suppress(ProcessLookupError):  # no process is left in the group
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(POLL_S)
        os.killpg(process.pid, signal.SIGKILL)
