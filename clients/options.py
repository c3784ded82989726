"""The options of all clients of the server, with their defaults. Light to import, for the command line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from common.headers import check_header

Protocol = Literal["http", "grpc"]
_DEFAULT_URLS: Mapping[Protocol, str] = {"http": "127.0.0.1:8000", "grpc": "127.0.0.1:8001"}


@dataclass(frozen=True)
class Tls:
    """Paths of PEM files for an encrypted connection. The server's certificate is always verified.

    ca_file:          the trusted authorities; default: those of the system.
    certificate_file: the client's certificate; key_file has its private key.
    Raises ValueError for a certificate without a key and for a key without a certificate.
    """

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("TLS: expected a client certificate and its key, found one without the other")


@dataclass(frozen=True)
class Options:
    """How to reach the servers, and how long to try. Raises ValueError for an invalid option.

    The addresses are checked by the first connection.

    url:           HOST:PORT, or several with commas for failover. Default: Triton's local port.
    timeout_s:     seconds per request, retries included.
    retry_s:       seconds, at most timeout_s, in which an absent or busy server is asked again.
    open_retry_s:  replaces retry_s while a classifier opens.
    batch_size:    most images per request, within the model's limit.
    concurrency:   most requests at a time; twice as many batches are in memory.
    tls:           default: no encryption.
    headers:       sent with every request.
    """

    url: str | None = None
    protocol: Protocol = "http"
    timeout_s: float = 30.0
    retry_s: float = 10.0  # a killed server is back within 10 s
    open_retry_s: float | None = None
    batch_size: int = 128  # with 2 requests at a time the fastest where server and client share two cores
    concurrency: int = 2
    tls: Tls | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.protocol not in _DEFAULT_URLS:
            raise ValueError(f"protocol: expected http or grpc, found {self.protocol!r}")
        if self.batch_size < 1 or self.concurrency < 1:
            sizes = f"{self.batch_size} and {self.concurrency}"
            raise ValueError(f"expected batch_size and concurrency of 1 or more, found {sizes}")
        if not self.timeout_s > 0:  # NaN too
            raise ValueError(f"timeout_s: expected seconds above 0, found {self.timeout_s!r}")
        for name, seconds in (("retry_s", self.retry_s), ("open_retry_s", self.open_retry_s or 0)):
            if not seconds >= 0:
                raise ValueError(f"{name}: expected seconds of 0 or more, found {seconds!r}")
        for name, value in self.headers.items():
            check_header(name, value)

    @property
    def addresses(self) -> list[str]:
        """Each HOST:PORT."""
        url = _DEFAULT_URLS[self.protocol] if self.url is None else self.url
        return [address.strip() for address in url.split(",")]


DEFAULTS = Options()
