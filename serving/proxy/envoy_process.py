"""Envoy as a child process.

In: Settings. Out: a running proxy. It counts the servers that get requests, and can drain a server.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path

from serving.child import Child, ChildFailed, wait_until
from serving.model_control_client import DIRECT
from serving.proxy.envoy_config import ProxyError, check, envoy, write, write_endpoints
from serving.proxy.settings import Settings

DRAIN_S = 1.5  # measured: until a draining server's open requests are answered
START_S, FINISH_S = 20.0, 2.0
ASK_S, SILENCES = 5.0, 3  # Envoy hangs if 3 requests in a row to its administration port have no answer within 5 s


class Proxy(Child):
    """Envoy with its configuration in `folder`. It is alive while it answers at its administration port."""

    grace_s = 3.0
    pause_s = 1.0  # also between two requests to the administration port

    def __init__(self, settings: Settings, folder: Path, log_path: Path) -> None:
        self.settings = replace(settings, drain_path=f"/drain_listeners?{secrets.token_urlsafe(24)}")
        self._folder, self.log_path = folder, log_path
        self._last_request_s, self._silences = 0.0, 0
        check(settings)
        command = [str(envoy()), "-c", str(folder / "envoy.yaml"), "--log-level", "warning", "--disable-hot-restart"]
        super().__init__(command, log_path)

    def start(self) -> None:
        write(self.settings, self._folder)  # also at a restart: programs that clean /tmp may have removed the files
        super().start()
        self._silences = 0

    def alive(self) -> bool:
        if super().alive() and time.monotonic() - self._last_request_s >= self.pause_s:
            silent = False
            try:
                self.ask("ready")
            except OSError as error:
                silent = isinstance(error, TimeoutError)
            self._silences = self._silences + 1 if silent else 0
            self._last_request_s = time.monotonic()
        return super().alive() and self._silences < SILENCES

    def ask(self, path: str, body: bytes | None = None) -> str:
        """Sends a request to the administration port and returns the answer's text. Raises OSError."""
        try:
            with DIRECT.open(f"http://127.0.0.1:{self.settings.admin}/{path}", body, timeout=ASK_S) as answer:
                return str(answer.read().decode())
        except HTTPException as error:
            raise OSError(f"port {self.settings.admin}: expected an answer of Envoy, found {error!r}") from error

    def wait_until_live(self) -> None:
        """Returns when Envoy is live. Raises ProxyError if Envoy ends, or is not live within START_S."""
        try:
            self.wait_until_ready(self._is_live, START_S)
        except ChildFailed as failure:
            lines = self.log_path.read_text(errors="replace").splitlines()
            raise ProxyError(f"Envoy {failure}: {' '.join(lines[-1:])}") from failure

    def _is_live(self) -> bool:
        with suppress(OSError):
            return self.ask("ready").startswith("LIVE")
        return False

    def healthy(self) -> int:
        """The number of servers that get requests; 0 if Envoy does not answer."""
        with suppress(OSError, ValueError):
            return min(self._numbers("^cluster\\.(http|grpc)\\.membership_healthy$"), default=0)
        return 0

    def is_idle(self, *ports: int) -> bool:
        """Whether the servers with these ports have no open request; False if Envoy does not answer."""
        with suppress(OSError, ValueError):
            lines = [line.split("::") for line in self.ask("clusters").splitlines() if "::rq_active::" in line]
            return not any(int(value) for _, address, _, value in lines if int(address.rpartition(":")[2]) in ports)
        return False

    def set_draining(self, index: int, draining: bool) -> None:
        """Lets server `index` get no new requests, or get requests again."""
        backends = [*self.settings.backends]
        backends[index] = replace(backends[index], draining=draining)
        self.settings = replace(self.settings, backends=backends)
        write_endpoints(self.settings, self._folder)

    def finish(self) -> None:
        """Closes the listeners to new connections and waits up to FINISH_S for open requests."""
        with suppress(OSError):
            self.ask(str(self.settings.drain_path).lstrip("/"), b"")
            wait_until(lambda: not any(self._numbers("^http\\.clients\\.downstream_rq_active$")), FINISH_S)

    def _numbers(self, pattern: str) -> list[int]:
        """The values of Envoy's statistics whose names match the pattern."""
        return [int(line.rpartition(":")[2]) for line in self.ask(f"stats?filter={pattern}").splitlines()]
