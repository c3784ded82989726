"""What stands between the page and the rest of the world: its headers, whom it answers, and how often.

A page on loopback can be reached by every web site that its user visits, through the user's browser. Such a site sends
its own Origin, or, when it has made its own name point to this machine (DNS rebinding), its own Host.
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
    """Why a request with this Host header is not for us, or None.

    An address cannot be rebound, so every address is ours; of names, localhost and the one we listen on. Any port
    will do, for it may be forwarded.
    """
    try:
        found = urlsplit(f"//{host}").hostname or ""
        if found in ("localhost", name.lower()) or ipaddress.ip_address(found):
            return None
    except ValueError:
        pass
    return f"Host: expected an address or localhost, found {host!r}"


def foreign_site(host: str, origin: str | None, fetch_site: str | None) -> str | None:
    """Why a request comes from the page of another site, or None; what is no browser sends neither header."""
    if fetch_site not in (None, "same-origin", "none"):
        return f"Sec-Fetch-Site: expected same-origin, found {fetch_site!r}"
    if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
        return f"Origin: expected http://{host}, found {origin!r}"
    return None


class RateLimit:
    """A token bucket for each client: `burst` requests at once, then `rate_hz` in the long run.

    Only the `clients` most recent addresses are remembered, so that memory is bounded; one that is forgotten starts
    with a full bucket.
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
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and when they were counted
        self._lock = threading.Lock()

    def wait_s(self, client: str) -> float:
        """Take a token of this client's: 0 if there was one, else the seconds until there will be one."""
        with self._lock:
            now_s = self._clock_s()
            tokens, counted_s = self._buckets.pop(client, (float(self._burst), now_s))
            tokens = min(self._burst, tokens + (now_s - counted_s) * self._rate_hz)
            allowed = tokens >= 1
            self._buckets[client] = (tokens - allowed, now_s)
            if len(self._buckets) > self._clients:
                self._buckets.popitem(last=False)
            return 0.0 if allowed else (1 - tokens) / self._rate_hz
