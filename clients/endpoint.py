"""Where a server is and how it is reached: address, protocol, patience, TLS, headers; and every client's defaults.

Light to import, for the command line.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

TIMEOUT_S, RETRY_S = 30.0, 1.0
BATCH_SIZE, CONCURRENCY = 128, 2  # the fastest on two cores, over either protocol, server and client together

Protocol = Literal["http", "grpc"]
_DEFAULT_URLS: Mapping[Protocol, str] = {"http": "127.0.0.1:8000", "grpc": "127.0.0.1:8001"}


@dataclass(frozen=True)
class Tls:
    """TLS for either protocol; the paths are of PEM files. The server's certificate is always verified.

    ca_file:          the authorities to trust; without it those of the system.
    certificate_file: what the client shows of itself, with the private key in key_file.
    """

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("TLS: expected a client certificate and its key together, found one of them")


@dataclass(frozen=True)
class Endpoint:
    """A server as one client sees it.

    url:       HOST:PORT; without it Triton's own port for the protocol on this machine.
    timeout_s: seconds for each request from its first try to its answer.
    retry_s:   of these, seconds in which it is tried again while the server cannot be reached or is too busy.
    tls:       without it the connection is not encrypted.
    headers:   go with every request, as a guarded server wants them; over gRPC their names become lower case.

    Raises ValueError for a timeout or header that cannot be. The address is checked when it is connected to.
    """

    url: str | None = None
    protocol: Protocol = "http"
    timeout_s: float = TIMEOUT_S
    retry_s: float = RETRY_S
    tls: Tls | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.protocol not in _DEFAULT_URLS:
            raise ValueError(f"protocol: expected http or grpc, found {self.protocol!r}")
        check_seconds("timeout_s", self.timeout_s)
        if not self.retry_s >= 0:
            raise ValueError(f"retry_s: expected seconds of 0 or more, found {self.retry_s!r}")
        for name, value in self.headers.items():
            check_header(name, value)

    @property
    def address(self) -> str:
        return _DEFAULT_URLS[self.protocol] if self.url is None else self.url


def check_seconds(name: str, value: float) -> None:
    """Raise ValueError unless `value` is a time to wait; NaN is none."""
    if not value > 0:
        raise ValueError(f"{name}: expected seconds above 0, found {value!r}")


def check_header(name: str, value: str) -> None:
    """Raise ValueError unless both protocols can send the header (RFC 9110: a token, printable ASCII)."""
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
        raise ValueError(f"header: expected a name of letters, digits and hyphens, found {name!r}")
    if not re.fullmatch(r"([!-~]([ -~]*[!-~])?)?", value):
        raise ValueError(f"header {name}: expected printable ASCII, found {value!r}")
    if name.lower() in ("transfer-encoding", "content-length", "content-encoding", "inference-header-content-length"):
        raise ValueError(f"header {name}: expected none that describes the request's own body")
