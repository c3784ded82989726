"""`vitbn serve --supervised`: keeps a server answering correctly.

In: Triton's arguments. Out: every model's newest whole versions are served until SIGTERM or SIGINT, then exit code 0;
exit code 1 after too many restarts. How it heals: triton_repo/README.md, Supervise.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from types import FrameType

import click

from serving.acts import Acts
from serving.arguments import EXIT_TIMEOUT_S, ServerOptions, parse
from serving.healing import Healing
from serving.launcher import PARENT_VARIABLE, LauncherError, end_with_parent
from serving.loading import Loading
from serving.prober import Prober
from serving.processes import Family
from serving.waits import ServerLost, Stopping, Waits

STOP_S = 4.0  # Triton's own --exit-timeout-secs is below
DEATH_S = 0.5  # between a server's last answer and its exit code
END_S = 1.5  # for a server that has failed
PORTS_S = 5.0  # a server whose supervisor was killed frees its ports meanwhile
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
RESTARTS, RESTARTS_WITHIN_S = 10, 600.0
METRICS_PORT = 8003


class Supervisor:
    def __init__(self, options: ServerOptions, acts: Acts, health_port: int | None = None) -> None:
        self._options, self._acts, self._waits = options, acts, Waits()
        self._loading = Loading(options, acts, self._waits)
        self._prober = Prober(options.http_url, options.headers, health_port)
        health_url = f"127.0.0.1:{health_port}" if health_port else None
        self._urls = [url for url in (options.http_url, options.grpc_url, health_url) if url]
        self._restarts: deque[float] = deque()

    def stop(self, number: int, frame: FrameType | None) -> None:
        self._waits.stopped.set()

    def run(self) -> int:
        while True:
            try:
                self._serve()
            except Stopping:
                self._acts.say("stopped")
                return 0
            except ServerLost:
                pass
            if not self._pause():
                return 0 if self._waits.stopped.is_set() else 1

    def _pause(self) -> bool:
        now = time.monotonic()
        self._restarts.append(now)
        while now - self._restarts[0] > RESTARTS_WITHIN_S:
            self._restarts.popleft()
        count = len(self._restarts)
        if count > RESTARTS:
            self._acts.gave_up(RESTARTS, RESTARTS_WITHIN_S)
            return False
        pause_s = 0.0 if count == 1 else min(FIRST_PAUSE_S * 2 ** (count - 2), LONGEST_PAUSE_S)
        if pause_s:
            self._acts.say(f"next start in {pause_s:g} s")
        return not self._waits.stopped.wait(pause_s)

    def _serve(self) -> None:
        self._acts.forget_plans()
        try:
            self._wait_for_ports()
            plans = self._loading.plans()
        except ServerLost as lost:
            self._acts.ended(lost.reason, str(lost))
            raise
        at_start = [name for name, each in plans.items() if each.config is None and each.versions != ()]
        complete = all(each.versions is not None for each in plans.values())
        process = subprocess.Popen(
            [sys.executable, "-m", "serving.launcher", *self._options.command(at_start, complete)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
        )
        self._acts.started(process.pid)
        family = Family(process.pid)
        grace_s = END_S
        try:
            self._loading.load_all(process, plans)
            self._prober.start()
            Healing(self._loading, self._prober, self._acts, self._waits).watch(process, family)
        except Stopping:
            grace_s = STOP_S
            raise
        except ServerLost as lost:
            self._acts.ended(*_cause(process, lost))
            raise
        finally:
            self._prober.stop()
            family.look()
            code = _end(process, grace_s)
            self._acts.swept(*family.sweep())
            if code and self._waits.stopped.is_set():
                self._acts.say(f"requests, connections or models were open after {EXIT_TIMEOUT_S} s: they were cut off")

    def _wait_for_ports(self) -> None:
        """Raises ServerLost: on a taken port another server's answers would pass for this server's."""
        deadline = time.monotonic() + PORTS_S
        while taken := [url for url in self._urls if _is_taken(url)]:
            if time.monotonic() > deadline:
                raise ServerLost("blocked", f"{taken[0]}: expected a free port, found {os.strerror(errno.EADDRINUSE)}")
            self._waits.tick()


def _is_taken(url: str) -> bool:
    host, _, port = url.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host.strip("[]"), int(port)), family=family).close()
    except OSError as error:
        return error.errno == errno.EADDRINUSE  # of other errors the server tells itself
    return False


def _cause(process: subprocess.Popen[bytes], lost: ServerLost) -> tuple[str, str]:
    """A server that dies during a load looks as if only the load had failed."""
    try:
        return "died", f"exit code {process.wait(DEATH_S)}"
    except subprocess.TimeoutExpired:
        return lost.reason, str(lost)


def _end(process: subprocess.Popen[bytes], grace_s: float) -> int:
    process.terminate()
    try:
        return process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def supervise(arguments: Sequence[str], metrics_port: int | None = METRICS_PORT, health_port: int | None = None) -> int:
    """Raises ValueError for bad arguments and a taken port."""
    end_with_parent(os.environ.pop(PARENT_VARIABLE, None))
    options = parse(arguments)
    try:
        acts = Acts(metrics_port)
    except OSError as error:
        raise ValueError(f"port {metrics_port} for the supervisor's metrics: {error.strerror}") from error
    supervisor = Supervisor(options, acts, health_port)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, supervisor.stop)
    return supervisor.run()


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--supervisor-port", type=click.IntRange(0, 65535), default=METRICS_PORT, show_default=True)
@click.option("--health-port", type=click.IntRange(0, 65535), default=0, help="For a proxy's health checks.  [0: none]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def main(supervisor_port: int, health_port: int, arguments: tuple[str, ...]) -> None:
    """Run tritonserver under supervision; port 0: no metrics of the supervisor."""
    try:
        sys.exit(supervise(arguments, supervisor_port or None, health_port or None))
    except (ValueError, LauncherError) as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
