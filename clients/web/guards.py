"""Protects the page: security headers, refusal of other sites' requests, a limit of the request rate.

Any web site can reach loopback through its visitor's browser. The browser then sends the site as Origin; if the site's
name resolves to this machine (DNS rebinding), it sends that name as Host.
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


def host_refusal(host: str, name: str) -> str | None:
    """The reason to refuse the Host header; None for localhost, `name` and IP addresses, which cannot be rebound."""
    try:
        hostname = urlsplit(f"//{host}").hostname or ""
        if hostname in ("localhost", name.lower()) or ipaddress.ip_address(hostname):
            return None
    except ValueError:
        pass
    return f"Host: expected an address, localhost or {name}, found {host!r}"


def site_refusal(host: str, origin: str | None, fetch_site: str | None) -> str | None:
    """The reason to refuse a request that another site sent; None for the page itself.

    Only browsers send Origin and Sec-Fetch-Site, so other programs are not refused.
    """
    if fetch_site not in (None, "same-origin", "none"):
        return f"Sec-Fetch-Site: expected same-origin, found {fetch_site!r}"
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        return f"Origin: expected http://{host}, found {origin!r}"
    return None


def rate_limit_key(address: str) -> str:
    """The client to count requests for: an IPv4 address, or the 64-bit network of an IPv6 address.

    A customer has all addresses of such a network.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))


class RateLimit:
    """A token bucket per client: `burst` requests at once, then `rate_hz` a second.

    clients: so many buckets, of the most recent clients, are kept.
    clock_s: the time in seconds.
    """

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
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and the time of their count
        self._lock = threading.Lock()

    def wait_s(self, client: str, tokens: float = 1) -> float:
        """Takes the tokens and returns 0, or takes none and returns the seconds until the bucket has as many.

        For 0 tokens: the seconds until a debt is paid.
        """
        with self._lock:
            available = self._refill(client)
            if available < tokens:
                return (tokens - available) / self._rate_hz
            self._take(client, tokens)
            return 0.0

    def charge(self, client: str, tokens: float) -> None:
        """Takes tokens for work that was done; missing tokens become a debt."""
        with self._lock:
            self._refill(client)
            self._take(client, tokens)

    def _refill(self, client: str) -> float:
        """Adds the tokens of the time that has passed; returns the tokens in the bucket."""
        now_s = self._clock_s()
        tokens, counted_s = self._buckets.pop(client, (float(self._burst), now_s))
        tokens = min(self._burst, tokens + (now_s - counted_s) * self._rate_hz)
        self._buckets[client] = (tokens, now_s)
        if len(self._buckets) > self._clients:
            self._buckets.popitem(last=False)
        return tokens

    def _take(self, client: str, tokens: float) -> None:
        available, counted_s = self._buckets[client]
        self._buckets[client] = (available - tokens, counted_s)
