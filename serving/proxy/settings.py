"""The settings of the proxy: servers, address, clients and limits."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.addresses import LOOPBACK_OF, is_loopback
from serving.parse_triton_arguments import PORTS

HEALTH_PORT, ADMIN_PORT, PAGE_PORT = 8004, 9901, 8080
IN_FLIGHT = 8  # open requests per server; fewer than its queue holds, so the proxy refuses before the server does
HEADERS_S, ANSWER_S = 5, 30  # time limits for a request's headers and for a server's answer


@dataclass(frozen=True)
class Backend:
    """A Triton server: its host and the ports of HTTP, gRPC and `vitbn probe --listen` (`health`)."""

    host: str
    http: int = PORTS["http"]
    grpc: int = PORTS["grpc"]
    health: int = HEALTH_PORT
    draining: bool = field(default=False, kw_only=True)

    @property
    def is_address(self) -> bool:
        """Whether `host` is an IP address, not a name."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True


@dataclass(frozen=True)
class TlsFiles:
    """PEM files; `certificate` holds the complete chain."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class Settings:
    """The settings of a proxy. Raises ValueError.

    host, ports: where clients connect, by HTTP or gRPC at each port.
    admin:       the port of Envoy's administration, on loopback.
    in_flight:   open requests per server, above which the proxy refuses.
    keys:        client -> API key; without keys everybody may send requests.
    metrics:     a port of `host` for Prometheus, or None.
    drain_path:  closes the listeners when it is asked for at `admin`; a secret, or None.
    page:        where `vitbn web` listens, by its port `http`. With keys its visitors log in as CLIENT by password KEY.
    """

    backends: Sequence[Backend]
    host: str = "127.0.0.1"
    ports: tuple[int, ...] = (PORTS["http"], PORTS["grpc"])
    admin: int = ADMIN_PORT
    in_flight: int = IN_FLIGHT
    tls: TlsFiles | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    metrics: int | None = None
    page: Backend | None = None
    drain_path: str | None = None

    def __post_init__(self) -> None:
        if not self.backends:
            raise ValueError("expected at least one server, found none")
        if not Backend(self.host).is_address:
            raise ValueError(f"expected an IP address for clients (--host), found {self.host!r}")
        if self.admin > 65535:
            raise ValueError(f"port {self.admin} of the proxy's administration: expected at most 65535")
        ports = {*self.ports, self.metrics}
        if self.admin in ports and self.host in ("127.0.0.1", *LOOPBACK_OF):
            raise ValueError(f"port {self.admin}: expected another port than the proxy's administration (--admin-port)")
        addresses = self._addresses()
        if self.page is not None and (names := [client for client in self.keys if ":" in client]):
            raise ValueError(
                f"client {names[0]!r}: expected a name without a colon, as the page's visitors log in by it"
            )
        page_is_local = self.host in LOOPBACK_OF and self.page is not None and is_loopback(self.page.host)
        if page_is_local and self.page is not None and self.page.http in self.ports:
            raise ValueError(f"port {self.page.http} of the page: expected another port than the proxy's")
        if repeated := [f"{host}:{port}" for host, port in addresses if addresses.count((host, port)) > 1]:
            raise ValueError(f"expected different servers and ports, found {repeated[0]} twice")
        if len({backend.is_address for backend in self.backends}) > 1:
            raise ValueError("expected IP addresses or names, found both: names cannot be drained by a file")
        if any(backend.draining and not backend.is_address for backend in self.backends):
            raise ValueError("expected an IP address of the server to drain, found a name")

    @property
    def passwords(self) -> str:
        """The keys for Envoy's basic authentication: lines CLIENT:{SHA}DIGEST, the format of `htpasswd -s`."""
        digests = {
            client: hashlib.sha1(key.encode(), usedforsecurity=False).digest() for client, key in self.keys.items()
        }
        return "\n".join(f"{client}:{{SHA}}{base64.b64encode(digest).decode()}" for client, digest in digests.items())

    def _addresses(self) -> list[tuple[str, int]]:
        """(host, port) of everything that listens: proxy, page and servers."""
        ports = [*{*self.ports}, *([] if self.metrics is None else [self.metrics])]
        addresses = [("127.0.0.1", self.admin), *((self.host, port) for port in ports)]
        addresses += [] if self.page is None else [(self.page.host, self.page.http)]
        for backend in self.backends:
            addresses += [(backend.host, port) for port in (backend.http, backend.grpc, backend.health)]
        return addresses

    @property
    def by_file(self) -> bool:
        """Whether Envoy reads the servers' addresses from files. Names of servers it resolves by DNS instead."""
        return self.backends[0].is_address


def parse_backend(text: str, http: int = PORTS["http"]) -> Backend:
    """Parses `HOST[:HTTP[:GRPC[:HEALTH]]]`, IPv6 in brackets; `http`: the default port of HTTP. Raises ValueError."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)((?::\d{1,5}){0,3})", text)
    ports = [int(port) for port in match[2].split(":")[1:]] if match else []
    if not match or not all(0 < port <= 65535 for port in ports):
        raise ValueError(f"expected HOST[:HTTP[:GRPC[:HEALTH]]], found {text!r}")
    backend = Backend(match[1].strip("[]"), *(ports or [http]))
    if not backend.is_address and (":" in backend.host or re.fullmatch(r"[\d.]+", backend.host)):
        raise ValueError(f"expected an address or a name, found {backend.host!r}")
    return backend


def read_keys(path: Path) -> dict[str, str]:
    """Reads client -> API key from lines CLIENT KEY; skips empty lines and comments with `#`. Raises ValueError."""
    keys: dict[str, str] = {}
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2 or len(words[1]) < 16 or not line.isascii():
            raise ValueError(f"{path}, line {number}: expected CLIENT KEY, a key of at least 16 ASCII characters")
        if words[0] in keys or words[1] in keys.values():
            raise ValueError(f"{path}, line {number}: expected a new client and a new key, found a repetition")
        keys[words[0]] = words[1]
    if not keys:
        raise ValueError(f"{path}: expected lines CLIENT KEY, found none")
    return keys
