"""A Triton server at one address: calls over tritonclient's asyncio client, with the errors of clients.errors.

The proxy variables of the environment are ignored, redirects are refused.
"""

import json
import os
import re
import socket
import ssl
from importlib import import_module
from typing import Any

from clients.errors import ClientError, ModelNotFound, ServerBusy, ServerError, ServerUnavailable
from clients.options import Options, Tls

_BUSY = ("StatusCode.RESOURCE_EXHAUSTED", "429")
_PASSING = ("StatusCode.UNAVAILABLE", "502", "503", "504")  # a server or a proxy that is busy or starting
_BUSY_WORDS = re.compile(r"maximum queue size|timeout expired|overload|overflow|too busy|too many", re.IGNORECASE)
_NOT_FOUND = ("StatusCode.NOT_FOUND", "404")
# gRPC gives an unreachable server the status of a busy server.
_GRPC_UNCONNECTED = ("failed to connect", "errors resolving", "DNS resolution failed")
_WORDLESS = "client received an empty response from the server."  # tritonclient's message, which omits the status
_LONGEST_WORDS = 500  # characters
# By default gRPC pauses up to two minutes before it redials.
_GRPC_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
]


class Server:
    """The Triton server at one address. Raises ServerUnavailable for unreadable TLS files."""

    def __init__(self, address: str, options: Options) -> None:
        self.address = address
        self._options = options
        self._is_http = options.protocol == "http"
        self._headers = {name if self._is_http else name.lower(): value for name, value in options.headers.items()}
        self._lost, self._garbled = _failures(self._is_http)
        module = import_module(f"tritonclient.{options.protocol}.aio")
        try:
            context = _context(options.tls)  # gRPC itself would take unreadable files for an absent server
            settings = self._http_settings(context) if self._is_http else self._grpc_settings()
            self._client = module.InferenceServerClient(address, **settings)
            if self._is_http:
                self._client._stub.trace_configs.append(_no_redirects())
        except OSError as error:
            raise ServerUnavailable(f"expected PEM files for TLS to {address}, found {error}") from error

    def _http_settings(self, context: ssl.SSLContext | None) -> dict[str, Any]:
        most = self._options.concurrency + 1  # one more for other requests
        settings: dict[str, Any] = {"conn_limit": most, "conn_timeout": None}
        return settings | ({"ssl": True, "ssl_context": context} if context else {})

    def _grpc_settings(self) -> dict[str, Any]:
        tls = self._options.tls
        settings: dict[str, Any] = {"channel_args": _GRPC_OPTIONS}
        if tls is not None:
            files = {"private_key": tls.key_file, "certificate_chain": tls.certificate_file}
            settings |= {"ssl": True, "root_certificates": tls.ca_file, **files}
        return settings

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Calls the method of tritonclient. Raises ServerUnavailable, ServerBusy, ModelNotFound and ServerError."""
        from tritonclient.utils import InferenceServerException

        try:
            return await getattr(self._client, method)(*arguments, headers=dict(self._headers), **options)
        except InferenceServerException as error:
            raise self._refused(error) from error
        except self._lost as error:
            raise self._unreachable(_reason(error), may_pass=not isinstance(error, ssl.SSLError)) from error
        except self._garbled as error:
            raise self.no_triton(self._foreign()) from error

    async def close(self) -> None:
        await self._client.close()

    def _refused(self, error: Any) -> ClientError:
        words, status = _line(_plain(error.message() or "")), error.status()
        words = f"HTTP {status}" if words == _WORDLESS else words
        if self._is_http and error.debug_details() and status not in (*_PASSING, *_BUSY):  # not Triton's JSON
            return self.no_triton(f"HTTP {status}, {words}")
        if not self._is_http and words.startswith(_GRPC_UNCONNECTED):
            return self._unreachable(self._unconnected(words), may_pass=True)
        restricted = "protocol is restricted" in words  # over gRPC with the status of a busy server
        if status in _BUSY or (status in _PASSING and not restricted and _BUSY_WORDS.search(words)):
            return ServerBusy(f"the server at {self.address} is too busy: {words}", may_pass=True)
        if status in _PASSING and not restricted:
            return ServerUnavailable(f"the server at {self.address} is unavailable: {words}", may_pass=True)
        kind = ModelNotFound if status in _NOT_FOUND else ServerError
        return kind(f"the server at {self.address} answered: {words}")

    def _unconnected(self, words: str) -> str:
        if "HTTP/2" in words or "http1" in words.lower():
            return self._foreign()
        reasons = {"Connection refused": "Connection refused", "lookup": "Name or service not known"}
        return next((plain for theirs, plain in reasons.items() if theirs in words), words)

    def _foreign(self) -> str:
        other = "gRPC" if self._is_http else "HTTP"
        return f"the answer there is not Triton's; is it the port for {other}, or another program's?"

    def no_triton(self, words: str) -> ServerUnavailable:
        return self._unreachable(words, may_pass=False)

    def _unreachable(self, words: str, may_pass: bool) -> ServerUnavailable:
        return ServerUnavailable(
            f"no Triton server answers at {self.address} over {self._options.protocol} ({_line(words)}); "
            "start one with: tritonserver --model-repository triton_repo",
            may_pass,
        )


def _context(tls: Tls | None) -> ssl.SSLContext | None:
    """Raises OSError for unreadable PEM files: ssl's errors are OSErrors."""
    if tls is None:
        return None
    context = ssl.create_default_context(cafile=tls.ca_file)
    if tls.certificate_file is not None:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def check_address(address: str) -> None:
    match = re.fullmatch(r"(?:\[[^\s/@?#;\[\]]+\]|[^\s/@?#;:\[\]]+):(\d{1,5})", address)  # IPv6 stands in brackets
    if not match or int(match[1]) > 65535:
        raise ServerUnavailable(f"expected the server's address as HOST:PORT, found {address!r}")


def _no_redirects() -> Any:
    """Makes aiohttp refuse redirects: it would send images and keys to whatever host they name."""
    import aiohttp

    async def refuse(*unused: object) -> None:
        raise ValueError("a redirect")

    config = aiohttp.TraceConfig()
    config.on_request_redirect.append(refuse)
    config.freeze()
    return config


Errors = tuple[type[Exception], ...]


def _failures(is_http: bool) -> tuple[Errors, Errors]:
    """What tritonclient raises for broken connections, and for answers that are not Triton's."""
    if not is_http:
        return (OSError,), (ValueError, TypeError, LookupError)
    import aiohttp

    lost = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError)
    return lost, (aiohttp.ClientError, ValueError, TypeError, LookupError)


def _reason(error: Exception) -> str:
    cause = getattr(error, "os_error", None)
    if not isinstance(cause, OSError) or isinstance(error, ssl.SSLError):
        return str(error)
    if isinstance(cause, socket.gaierror) or not cause.errno:
        return cause.strerror or str(cause) or "the connection ended"  # such as TLS to a server without TLS
    return os.strerror(cause.errno)


def _plain(words: str) -> str:
    """The error inside the JSON that a proxy sends as the words of a gRPC status; else the words themselves."""
    try:
        return str(json.loads(words)["error"])
    except (ValueError, LookupError, TypeError):
        return words


def _line(words: str) -> str:
    line = " ".join(words.split())
    return line if len(line) <= _LONGEST_WORDS else f"{line[:_LONGEST_WORDS]} …"
