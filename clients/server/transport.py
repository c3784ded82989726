"""tritonclient's asyncio clients with the errors of clients.errors. Ignores proxy variables."""

import os
import re
import socket
import ssl
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from clients.errors import ClientError, ModelNotFound, ServerBusy, ServerError, ServerUnavailable
from clients.server.endpoint import Endpoint

_BUSY = ("StatusCode.RESOURCE_EXHAUSTED", "429")
_PASSING = ("StatusCode.UNAVAILABLE", "502", "503", "504")  # busy or starting, or a proxy says so
_BUSY_WORDS = re.compile(r"maximum queue size|timeout expired|overload|overflow|too busy|too many", re.IGNORECASE)
_NOT_FOUND = ("StatusCode.NOT_FOUND", "404")
# gRPC gives an unreachable server the status of a busy server.
_GRPC_UNCONNECTED = ("failed to connect", "errors resolving", "DNS resolution failed")
_WORDLESS = "client received an empty response from the server."  # tritonclient's, without the status
_LONGEST_WORDS = 500  # characters
# By default gRPC pauses up to two minutes before it redials.
_GRPC_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
]
_retry_after: ContextVar[list[str]] = ContextVar("retry_after")  # of this task's request


class Transport:
    def __init__(self, address: str, endpoint: Endpoint, concurrency: int) -> None:
        self.address = address
        self._endpoint = endpoint
        self._is_http = endpoint.protocol == "http"
        self._headers = {name if self._is_http else name.lower(): value for name, value in endpoint.headers.items()}
        self._lost, self._garbled = _failures(self._is_http)
        module = import_module(f"tritonclient.{endpoint.protocol}.aio")
        try:
            options = self._http_options(concurrency) if self._is_http else self._grpc_options()
            self._client = module.InferenceServerClient(address, **options)
        except OSError as error:  # ssl's errors are OSErrors
            raise ServerUnavailable(f"expected PEM files for TLS to {address}, found {error}") from error
        if self._is_http:
            _hear_retry_after(self._client)

    def _http_options(self, concurrency: int) -> dict[str, Any]:
        tls = self._endpoint.tls
        options: dict[str, Any] = {"conn_limit": concurrency + 1, "conn_timeout": None}  # one more for other requests
        if tls is not None:
            context = ssl.create_default_context(cafile=tls.ca_file)
            if tls.certificate_file is not None:
                context.load_cert_chain(tls.certificate_file, tls.key_file)
            options |= {"ssl": True, "ssl_context": context}
        return options

    def _grpc_options(self) -> dict[str, Any]:
        tls = self._endpoint.tls
        options: dict[str, Any] = {"channel_args": _GRPC_OPTIONS}
        if tls is not None:
            files = {"private_key": tls.key_file, "certificate_chain": tls.certificate_file}
            options |= {"ssl": True, "root_certificates": tls.ca_file, **files}
        return options

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        from tritonclient.utils import InferenceServerException

        heard: list[str] = []
        _retry_after.set(heard)
        try:
            return await getattr(self._client, method)(*arguments, headers=dict(self._headers), **options)
        except InferenceServerException as error:
            raise self._refused(error, heard) from error
        except self._lost as error:
            raise self._unreachable(_reason(error), may_pass=not isinstance(error, ssl.SSLError)) from error
        except self._garbled as error:
            raise self.no_triton(self._foreign()) from error

    async def close(self) -> None:
        await self._client.close()

    def _refused(self, error: Any, heard: list[str]) -> ClientError:
        words, status = _line(error.message() or ""), error.status()
        words = f"HTTP {status}" if words == _WORDLESS else words
        wait_s = _seconds(heard if self._is_http else _metadata(error))
        if self._is_http and error.debug_details() and status not in (*_PASSING, *_BUSY):  # not Triton's JSON
            return self.no_triton(f"HTTP {status}, {words}")
        if not self._is_http and words.startswith(_GRPC_UNCONNECTED):
            return self._unreachable(self._unconnected(words), may_pass=True)
        restricted = "protocol is restricted" in words  # over gRPC with the status of a busy server
        if status in _BUSY or (status in _PASSING and not restricted and (wait_s or _BUSY_WORDS.search(words))):
            return ServerBusy(f"the server at {self.address} is too busy: {words}", True, wait_s)
        if status in _PASSING and not restricted:
            return ServerUnavailable(f"the server at {self.address} is unavailable: {words}", True, wait_s)
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
            f"no Triton server answers at {self.address} over {self._endpoint.protocol} ({_line(words)}); "
            "start one with: tritonserver --model-repository triton_repo",
            may_pass,
        )


def check_address(address: str) -> None:
    if not re.fullmatch(r"[^\s/@?#;]+:\d{1,5}", address) or int(address.rpartition(":")[2]) > 65535:
        raise ServerUnavailable(f"expected the server's address as HOST:PORT, found {address!r}")


Errors = tuple[type[Exception], ...]


def _failures(is_http: bool) -> tuple[Errors, Errors]:
    """tritonclient's exceptions for broken connections, and for garbled answers."""
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
        return cause.strerror or str(cause) or "the connection ended"  # as where TLS meets a server without it
    return os.strerror(cause.errno)


def _hear_retry_after(client: Any) -> None:
    """Keeps each answer's Retry-After for the asking task; tritonclient drops it."""
    import aiohttp

    async def ended(session: Any, context: Any, parameters: Any) -> None:
        _retry_after.get([]).append(parameters.response.headers.get("Retry-After", ""))

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(ended)
    trace.freeze()
    client._stub.trace_configs.append(trace)


def _metadata(error: Any) -> list[str]:
    call_error = error.__context__
    if not hasattr(call_error, "trailing_metadata"):
        return []
    return [str(value) for key, value in call_error.trailing_metadata() or () if key == "retry-after"]


def _seconds(values: list[str]) -> float:
    """The last value; a date, which RFC 9110 also allows, gives 0."""
    return max([float(value) for value in values[-1:] if re.fullmatch(r"\d{1,6}(\.\d{1,6})?", value)], default=0.0)


def _line(words: str) -> str:
    line = " ".join(words.split())
    return line if len(line) <= _LONGEST_WORDS else f"{line[:_LONGEST_WORDS]} …"
