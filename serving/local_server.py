"""A Triton server for a `with` block.

In: a model repository. Out: this environment's `tritonserver` as a child process on free loopback ports. The end of the
block, or of this process, ends its processes and removes its shared memory and files.
"""

import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from common.files import swept_folder
from serving import control_key
from serving.child import Child, ChildFailed
from serving.ports import answers, free_ports
from serving.stub_processes import remove_stale_environments

PORT_ATTEMPTS = 3
STOP_GRACE_S = 20.0
REASON_LINES = 6


class ServerFailed(RuntimeError):
    """The server stopped or was not ready in time. The message ends with the last lines of its log."""


@dataclass(frozen=True)
class Server:
    """A running server. URLs are HOST:PORT, empty for a service that the server does not have."""

    http_url: str
    grpc_url: str
    metrics_url: str
    supervisor_url: str  # the supervisor's metrics
    health_url: str  # answers a proxy's health checks
    log_path: Path
    pid: int

    def log(self) -> str:
        """All output of the server until now."""
        return self.log_path.read_text(errors="replace")


@contextmanager
def running_server(
    repository: Path, arguments: Sequence[str] = (), timeout_s: float = 60, supervised: bool = False
) -> Iterator[Server]:
    """Yields the server when it is ready. Raises ServerFailed if it stops or is not ready after `timeout_s`.

    arguments:  Triton's, without addresses and ports.
    supervised: a supervisor runs the server, and `pid` is the supervisor's.
    Triton 2.51 sometimes crashes while it starts: after a first crash it is started once more.
    """
    crashed = False
    with swept_folder(Path(tempfile.gettempdir()), "vitbn-server-") as folder:
        log_path = folder / "server.log"
        for _ in range(PORT_ATTEMPTS):
            with _child(repository, arguments, log_path, supervised) as (child, server):
                try:
                    child.wait_until_ready(partial(answers, server.http_url, "v2/health/ready", 1.0), timeout_s)
                except ChildFailed as error:
                    failure = error
                else:
                    yield server
                    return
            if child.wait(0) == -signal.SIGSEGV and not crashed:
                print(f"tritonserver on {repository} {failure} at its start: once more", file=sys.stderr)
                crashed = True
            elif "already in use" not in server.log():  # another program may take a port meanwhile
                break
        raise ServerFailed(f"tritonserver on {repository} {failure}: {_reason(server.log())}")


@contextmanager
def _child(
    repository: Path, arguments: Sequence[str], log_path: Path, supervised: bool
) -> Iterator[tuple[Child, Server]]:
    services = ["http", "grpc", "metrics", *(["supervisor", "health"] if supervised else [])]
    ports = dict(zip(services, free_ports(len(services)), strict=True))
    program = ["serving.serve", "--supervised"] if supervised else ["serving.launcher"]
    command = [sys.executable, "-m", *program, f"--model-repository={repository}"]
    command += [f"--{service}-port={port}" for service, port in ports.items()]
    log_path.unlink(missing_ok=True)  # the log of an earlier attempt
    child = Child([*command, *arguments], log_path)
    child.start()
    urls = dict.fromkeys(("supervisor_url", "health_url"), "")
    urls |= {f"{service}_url": f"127.0.0.1:{port}" for service, port in ports.items()}
    try:
        yield child, Server(log_path=log_path, pid=child.pid, **urls)
    finally:
        child.stop(STOP_GRACE_S)
        child.kill_session(STOP_GRACE_S)  # given time, stubs of a dead server remove their shared memory
        remove_stale_environments()
        control_key.forget([ports["http"], ports["grpc"]])


def _reason(log: str) -> str:
    """The last lines of the log that are errors, else its last lines."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("E", "error"))]
    return "; ".join((errors or lines)[-REASON_LINES:])
