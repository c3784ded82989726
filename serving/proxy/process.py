"""Envoy as a child process.

In: Settings. Out: a proxy that answers, for the length of a `with` block; while it runs `drain` changes its servers.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from serving.proxy.folder import ProxyError, envoy, write, write_endpoints
from serving.proxy.settings import Settings

DRAIN_S = 1.5  # until requests that a server has are answered
START_S, STOP_S, POLL_S = 20.0, 3.0, 0.05


class Proxy:
    """A started Envoy; `drain` and `fill` change which servers get new requests."""

    def __init__(self, settings: Settings, folder: Path, log: Path) -> None:
        """Raises ProxyError."""
        self.settings, self._folder, self.log_path = settings, folder, log
        write(settings, folder)
        self.start()

    def start(self) -> None:
        command = [str(envoy()), "-c", str(self._folder / "envoy.json"), "--log-level", "warning"]
        command += ["--use-dynamic-base-id", "--concurrency", "1"]  # a core forwards 10,000 requests a second
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def ask(self, path: str, timeout_s: float = 5.0) -> str:
        """Envoy's answer at its administration port; raises OSError."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy must not see loopback
        with opener.open(f"http://127.0.0.1:{self.settings.admin}/{path}", timeout=timeout_s) as answer:
            return str(answer.read().decode())

    def wait_until_ready(self, seconds: float = START_S) -> None:
        """Raises ProxyError if Envoy ends or is not ready in time."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError):
                if self.ask("ready", 1.0).startswith("LIVE"):
                    return
            time.sleep(POLL_S)
        lines = self.log_path.read_text(errors="replace").splitlines()
        raise ProxyError(f"Envoy is not ready after {seconds:g} s: {' '.join(lines[-3:])}")

    def healthy(self) -> int:
        """Number of servers that get requests, by the protocol that has fewer; raises OSError."""
        text = self.ask("stats?filter=^cluster\\.(http|grpc)\\.membership_healthy$")
        return min(int(line.rpartition(":")[2]) for line in text.splitlines())

    def set_draining(self, index: int, draining: bool) -> None:
        """Whether the server `index` gets new requests; Envoy sees the change within milliseconds."""
        backends = [
            replace(each, draining=draining) if number == index else each
            for number, each in enumerate(self.settings.backends)
        ]
        self.settings = replace(self.settings, backends=backends)
        write_endpoints(self.settings, self._folder)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def running_proxy(settings: Settings) -> Iterator[Proxy]:
    """Starts Envoy, yields it when it is ready, stops it at the end of the block. Raises ProxyError."""
    with tempfile.TemporaryDirectory(prefix="proxy-") as folder:
        proxy = Proxy(settings, Path(folder), Path(folder, "envoy.log"))
        try:
            proxy.wait_until_ready()
            yield proxy
        finally:
            proxy.stop()
