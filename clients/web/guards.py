"""Protects the page: headers, allowed senders, rate.

Any web site can reach loopback through its visitor's browser. The browser then sends the site's Origin, or the site's
name as Host if that name resolves to this machine (DNS rebinding).
"""

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from urllib.parse import urlsplit

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def foreign_host(host: str, name: str) -> str | None:
    """The reason to refuse the Host header; None for localhost, `name` and IP addresses, which cannot be rebound."""
    try:
        hostname = urlsplit(f"//{host}").hostname or ""
        if hostname in ("localhost", name.lower()) or ipaddress.ip_address(hostname):
            return None
    except ValueError:
        pass
    return f"Host: expected an address, localhost or {name}, found {host!r}"


def foreign_site(host: str, origin: str | None, fetch_site: str | None) -> str | None:
    """The reason to refuse another site's request, or None. Only browsers send Origin and Sec-Fetch-Site."""
    if fetch_site not in (None, "same-origin", "none"):
        return f"Sec-Fetch-Site: expected same-origin, found {fetch_site!r}"
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        return f"Origin: expected http://{host}, found {origin!r}"
    return None


def sender_of(address: str) -> str:
    """The client to count requests for: an IPv4 address or a 64-bit IPv6 network, all of which one customer owns."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))


class RateLimit:
    """A token bucket per client, for the `clients` most recent: `burst` requests at once, then `rate_hz`."""

    def __init__(
        self,
        rate_hz: float = 10,
        burst: int = 40,
        clients: int = 1024,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate_hz = rate_hz
        self._burst = burst
        self._clients = clients
        self._clock_s = clock_s
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when they were counted
        self._lock = threading.Lock()

    def wait_s(self, client: str, tokens: float = 1) -> float:
        """Takes the tokens and returns 0, or takes none and returns the seconds until they are there.

        With 0 tokens it returns the seconds until a debt is paid.
        """
        with self._lock:
            left = self._left(client)
            if left < tokens:
                return (tokens - left) / self._rate_hz
            self._take(client, tokens)
            return 0.0

    def charge(self, client: str, tokens: float) -> None:
        """Takes tokens for work that was done; missing tokens become a debt."""
        with self._lock:
            self._left(client)
            self._take(client, tokens)

    def _left(self, client: str) -> float:
        now_s = self._clock_s()
        tokens, counted_s = self._buckets.pop(client, (float(self._burst), now_s))
        tokens = min(self._burst, tokens + (now_s - counted_s) * self._rate_hz)
        self._buckets[client] = (tokens, now_s)
        if len(self._buckets) > self._clients:
            self._buckets.popitem(last=False)
        return tokens

    def _take(self, client: str, tokens: float) -> None:
        left, counted_s = self._buckets[client]
        self._buckets[client] = (left - tokens, counted_s)
