"""A Triton server at a single address, over tritonclient's asyncio client. What differs by protocol is here alone.

In: questions. Out: Triton's JSON and logits, or the errors of clients.errors. The proxy variables of the environment
are ignored, redirects are refused.
"""

import json
import os
import re
import socket
import ssl
import zlib
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.errors import ClientError, ModelNotFound, ServerBusy, ServerError, ServerUnavailable
from clients.options import Options, Tls
from common.addresses import is_address
from common.files import reason
from common.preprocessing_settings import INPUT_NAME, OUTPUT_NAME

_BUSY = ("StatusCode.RESOURCE_EXHAUSTED", "429")
_TEMPORARY = ("StatusCode.UNAVAILABLE", "502", "503", "504")  # of a server or proxy that is busy or starts
_BUSY_MESSAGE = re.compile(r"maximum queue size|timeout expired|overload|overflow|too busy|too many", re.IGNORECASE)
_NOT_FOUND = ("StatusCode.NOT_FOUND", "404")
# gRPC reports an unreachable server with the status of a busy server.
_GRPC_UNCONNECTED = ("failed to connect", "errors resolving", "DNS resolution failed")
# Of tritonclient. The reason of its JSON reader follows the second, and then the body.
_MESSAGE_WITHOUT_STATUS = "client received an empty response from the server."
_MESSAGE_NOT_JSON = "an exception occurred in the client while decoding the response"
_BAD_CERTIFICATE = "its certificate does not verify:"
_LONGEST_MESSAGE = 500  # characters
# By default gRPC waits up to two minutes before it reconnects.
_GRPC_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
]


class Server:
    """The Triton server at `address` (HOST:PORT). Raises ServerUnavailable for unreadable TLS files.

    All questions raise ServerUnavailable, ServerBusy, ModelNotFound and ServerError.
    """

    def __init__(self, address: str, options: Options) -> None:
        self.address = address
        self._options = options
        self._is_http = options.protocol == "http"
        self._headers = {name if self._is_http else name.lower(): value for name, value in options.headers.items()}
        self._connection_errors, self._format_errors = _error_types(self._is_http)
        self._triton = import_module(f"tritonclient.{options.protocol}.aio")
        try:
            # Also for gRPC, which itself would report unreadable files as an absent server.
            context = _tls_context(options.tls)
            settings = self._http_settings(context) if self._is_http else self._grpc_settings()
            self._client = self._triton.InferenceServerClient(address, **settings)
            if self._is_http:
                self._client._stub.trace_configs.append(_no_redirects())
        except OSError as error:
            raise ServerUnavailable(f"expected PEM files for TLS to {address}, found {reason(error)}") from error

    def _http_settings(self, context: ssl.SSLContext | None) -> dict[str, Any]:
        connections = self._options.concurrency + 1  # the last for requests other than inference
        settings: dict[str, Any] = {"conn_limit": connections, "conn_timeout": None}
        return settings | ({"ssl": True, "ssl_context": context} if context else {})

    def _grpc_settings(self) -> dict[str, Any]:
        tls = self._options.tls
        settings: dict[str, Any] = {"channel_args": _GRPC_OPTIONS}
        if tls is not None:
            files = {"private_key": tls.key_file, "certificate_chain": tls.certificate_file}
            settings |= {"ssl": True, "root_certificates": tls.ca_file, **files}
        return settings

    async def models(self) -> list[dict[str, Any]]:
        """Name, version, state and reason of every version in Triton's index.

        If the index needs a key, the ready versions, by Triton's statistics.
        """
        try:
            index = await self._ask_json("get_model_repository_index")
            entries = index if self._is_http else index.get("models", [])
        except ServerError as refusal:
            if "is restricted" not in str(refusal):
                raise
            statistics = self._object(await self._ask_json("get_inference_statistics"))
            entries = [{**model, "state": "READY"} for model in statistics.get("model_stats", [])]
        if isinstance(entries, list) and all(
            isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in entries
        ):
            return entries
        raise self._not_triton(f"expected a list of models, found {entries!r}")

    async def ready(self, model: str) -> bool:
        return bool(await self.call("is_model_ready", model))

    async def metadata(self, model: str) -> dict[str, Any]:
        return self._object(await self._ask_json("get_model_metadata", model))

    async def config(self, model: str) -> dict[str, Any]:
        config = await self._ask_json("get_model_config", model)
        return self._object(config if self._is_http else config.get("config"))

    async def infer(self, model: str, batch: NDArray[np.uint8]) -> tuple[NDArray[np.float32], str]:
        """uint8 (b, C, H, W) -> float32 logits (b, classes), and the version that answered."""
        tensor = self._triton.InferInput(INPUT_NAME, list(batch.shape), "UINT8")
        tensor.set_data_from_numpy(np.asarray(batch))  # a masked array would send its fill value
        result = await self.call("infer", model, [tensor], outputs=[self._triton.InferRequestedOutput(OUTPUT_NAME)])
        response = result.get_response()
        try:
            version = response["model_version"] if self._is_http else response.model_version
            return np.asarray(result.as_numpy(OUTPUT_NAME), dtype=np.float32), str(version)
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # other JSON, or fewer bytes
            expected = f"expected a version, and {OUTPUT_NAME} that fit their shape"
            raise ServerError(f"model {model!r} at {self.address}: {expected}, found another answer") from error

    async def _ask_json(self, method: str, *arguments: str) -> Any:
        return await self.call(method, *arguments, **({} if self._is_http else {"as_json": True}))

    def _object(self, answer: Any) -> dict[str, Any]:
        """Raises ServerUnavailable unless the answer is a JSON object."""
        if not isinstance(answer, dict):
            raise self._not_triton(f"expected a JSON object, found {answer!r}")
        return answer

    async def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Calls `method` of tritonclient."""
        from tritonclient.utils import InferenceServerException

        try:
            return await getattr(self._client, method)(*arguments, headers=dict(self._headers), **options)
        except InferenceServerException as error:
            raise self._refusal(error) from error
        except self._connection_errors as error:
            raise self._unreachable(_reason(error), may_pass=not isinstance(error, ssl.SSLError)) from error
        except self._format_errors as error:
            raise self._not_triton(self._wrong_port()) from error

    async def close(self) -> None:
        await self._client.close()

    def _refusal(self, error: Any) -> ClientError:
        """tritonclient's InferenceServerException as the error of clients.errors."""
        message, status = _one_line(_message_in_json(str(error.message() or ""))), error.status()
        is_triton = not message.startswith(_MESSAGE_NOT_JSON)
        if not is_triton or message == _MESSAGE_WITHOUT_STATUS:
            message = ", ".join(filter(None, [f"HTTP {status}", _one_line(error.debug_details() or "")]))
        if not is_triton and status not in (*_TEMPORARY, *_BUSY):
            return self._not_triton(message)
        if not self._is_http and message.startswith(_GRPC_UNCONNECTED):
            return self._unreachable(self._grpc_reason(message), may_pass=True)
        restricted = "protocol is restricted" in message  # over gRPC with the status of a busy server
        if status in _BUSY or (status in _TEMPORARY and not restricted and _BUSY_MESSAGE.search(message)):
            return ServerBusy(f"the server at {self.address} is too busy: {message}", may_pass=True)
        if status in _TEMPORARY and not restricted:
            return ServerUnavailable(f"the server at {self.address} is unavailable: {message}", may_pass=True)
        kind = ModelNotFound if status in _NOT_FOUND else ServerError
        return kind(f"the server at {self.address} answered: {message}")

    def _grpc_reason(self, message: str) -> str:
        """Why gRPC reached no server, in short."""
        if "HTTP/2" in message or "http1" in message.lower():
            return self._wrong_port()
        if certificate := re.search("CERTIFICATE_VERIFY_FAILED: (.*?)(?:: OK)?$", message):
            return f"{_BAD_CERTIFICATE} {certificate[1]}"
        reasons = {"Connection refused": "Connection refused", "lookup": "Name or service not known"}
        return next((reason for part, reason in reasons.items() if part in message), message)

    def _wrong_port(self) -> str:
        other = "gRPC" if self._is_http else "HTTP"
        return f"the answer there is not Triton's; is it the port for {other}, or another program's?"

    def _not_triton(self, reason: str) -> ServerUnavailable:
        """The error for an answer that Triton does not give."""
        return self._unreachable(reason, may_pass=False)

    def _unreachable(self, reason: str, may_pass: bool) -> ServerUnavailable:
        return ServerUnavailable(
            f"no Triton server answers at {self.address} over {self._options.protocol} ({_one_line(reason)}); "
            "start one with: tritonserver --model-repository triton_repo",
            may_pass,
        )


def _tls_context(tls: Tls | None) -> ssl.SSLContext | None:
    """The TLS settings of HTTP. Raises OSError for unreadable PEM files: ssl's errors are OSErrors."""
    if tls is None:
        return None
    context = ssl.create_default_context(cafile=tls.ca_file)
    if tls.certificate_file is not None:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def check_address(address: str) -> None:
    """Raises ServerUnavailable unless `address` is HOST:PORT."""
    if not is_address(address):
        raise ServerUnavailable(f"expected the server's address as HOST:PORT, found {address!r}")


def _no_redirects() -> Any:
    """Settings with which aiohttp refuses redirects, which would send images and keys to another host."""
    import aiohttp

    async def refuse(*unused: object) -> None:
        raise ValueError("a redirect")

    config = aiohttp.TraceConfig()
    config.on_request_redirect.append(refuse)
    config.freeze()
    return config


ErrorTypes = tuple[type[Exception], ...]


def _error_types(is_http: bool) -> tuple[ErrorTypes, ErrorTypes]:
    """What tritonclient raises for broken connections, and for answers that Triton does not give."""
    other = (ValueError, TypeError, LookupError, RecursionError, EOFError, zlib.error)
    if not is_http:
        return (OSError,), other
    import aiohttp

    return (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError), (aiohttp.ClientError, *other)


def _reason(error: Exception) -> str:
    """Why the connection broke: the system's words if the error has a system error."""
    if isinstance(certificate := getattr(error, "certificate_error", None), ssl.SSLCertVerificationError):
        return f"{_BAD_CERTIFICATE} {certificate.verify_message.rstrip('.')}"
    cause = getattr(error, "os_error", None)
    if not isinstance(cause, OSError) or isinstance(error, ssl.SSLError):
        return str(error)
    if isinstance(cause, socket.gaierror) or not cause.errno:
        return cause.strerror or str(cause) or "the connection ended"  # no words for TLS to a server without TLS
    return os.strerror(cause.errno)


def _message_in_json(message: str) -> str:
    """The error in the JSON that a proxy sends as the message of a gRPC status; a message without JSON is unchanged."""
    try:
        return str(json.loads(message)["error"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return message


def _one_line(message: str) -> str:
    line = " ".join(message.split())
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]} …"
