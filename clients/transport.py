"""Requests in, Triton's JSON and logits out: for asyncio, and from a thread with a loop for all other callers.

Over tritonclient's asyncio clients, with the errors of clients.errors; ignores proxy variables. Inference changes
nothing, so requests may be repeated: at the next server of a list, then after a pause, until `retry_s`; at busy servers
only within the retry budget.
"""

import asyncio
import concurrent.futures
import os
import random
import re
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from clients.errors import ClientError, DeadlineExceeded, ModelNotFound, ServerBusy, ServerError, ServerUnavailable
from clients.options import Options, Tls

T = TypeVar("T")

INPUT, OUTPUT = "image", "logits"

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
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_SAVED_SHARE, _MOST_SAVED = 0.1, 10.0


class Connection:
    """For the running event loop; raises ServerUnavailable for an invalid address and unreadable TLS files."""

    def __init__(self, options: Options) -> None:
        self.retry_s = options.retry_s
        self._options = options
        self._is_http = options.protocol == "http"
        self._as_json = {} if self._is_http else {"as_json": True}
        self._triton = import_module(f"tritonclient.{options.protocol}.aio")
        for address in options.addresses:
            _check_address(address)
        self._servers = [_Server(address, options) for address in options.addresses]
        self._budget = _RetryBudget()

    @property
    def url(self) -> str:
        return self._servers[0].address

    async def models(self) -> list[dict[str, Any]]:
        """Name, version, state and reason of every version; of the ready versions where the index wants a key."""
        try:
            index = await self._ask("get_model_repository_index", **self._as_json)
            entries = index if self._is_http else index.get("models", [])
        except ServerError as refusal:
            if "is restricted" not in str(refusal):
                raise
            statistics = await self._ask("get_inference_statistics", **self._as_json)
            entries = [{**each, "state": "READY"} for each in self._object(statistics).get("model_stats", [])]
        if isinstance(entries, list) and all(
            isinstance(each, dict) and isinstance(each.get("name"), str) for each in entries
        ):
            return entries
        raise self._servers[0].no_triton(f"expected a list of models, found {entries!r}")

    async def ready(self, name: str) -> bool:
        return bool(await self._ask("is_model_ready", name))

    async def metadata(self, name: str) -> dict[str, Any]:
        return self._object(await self._ask("get_model_metadata", name, **self._as_json))

    async def config(self, name: str) -> dict[str, Any]:
        config = await self._ask("get_model_config", name, **self._as_json)
        return self._object(config if self._is_http else config.get("config"))

    def _object(self, answer: Any) -> dict[str, Any]:
        if not isinstance(answer, dict):
            raise self._servers[0].no_triton(f"expected a JSON object, found {answer!r}")
        return answer

    async def infer(self, name: str, batch: NDArray[np.uint8]) -> tuple[NDArray[np.float32], str]:
        """(b, 1, 28, 28) -> logits (b, classes) and the version that answered."""
        tensor = self._triton.InferInput(INPUT, list(batch.shape), "UINT8")
        tensor.set_data_from_numpy(np.asarray(batch))  # a masked array would send its fill value
        result = await self._ask("infer", name, [tensor], outputs=[self._triton.InferRequestedOutput(OUTPUT)])
        try:
            return np.asarray(result.as_numpy(OUTPUT), dtype=np.float32), self._version(result)
        except (LookupError, TypeError, ValueError) as error:  # fewer bytes than its shape has
            raise ServerError(f"model {name!r}: the logits do not fit their shape: {error}") from error

    def _version(self, result: Any) -> str:
        response = result.get_response()
        return str(response["model_version"] if self._is_http else response.model_version)

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers))

    async def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        clock = asyncio.get_running_loop().time
        end_s = clock() + self._options.timeout_s
        last_try_s = clock() + min(self.retry_s, self._options.timeout_s)
        pauses = _pauses_s()
        while True:
            try:
                answer = await self._ask_round(end_s, method, *arguments, **options)
            except ServerUnavailable as failure:
                pause_s = next(pauses)
                if not failure.may_pass or clock() + pause_s > last_try_s:
                    raise
                if isinstance(failure, ServerBusy) and not self._budget.spend():
                    raise
                await asyncio.sleep(pause_s)
            else:
                self._budget.earn()
                return answer

    async def _ask_round(self, end_s: float, method: str, *arguments: Any, **options: Any) -> Any:
        """The server that answers becomes first."""
        for left, server in zip(range(len(self._servers), 0, -1), [*self._servers], strict=True):
            patience_s = (end_s - asyncio.get_running_loop().time()) / left
            try:
                return await asyncio.wait_for(server.call(method, *arguments, **options), patience_s)
            except asyncio.TimeoutError as error:
                if left == 1:
                    raise DeadlineExceeded(
                        f"the server at {server.address} did not answer within {self._options.timeout_s:g} s"
                    ) from error
            except ServerUnavailable:
                if left == 1:
                    raise
            if server is self._servers[0]:  # else another request has moved it
                self._servers.append(self._servers.pop(0))
        raise AssertionError("a connection has at least one server")


class _Server:
    """One address."""

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
        words, status = _line(error.message() or ""), error.status()
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
    """Raises OSError, as ssl's errors are."""
    if tls is None:
        return None
    context = ssl.create_default_context(cafile=tls.ca_file)
    if tls.certificate_file is not None:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def _check_address(address: str) -> None:
    match = re.fullmatch(r"(?:\[[^\s/@?#;\[\]]+\]|[^\s/@?#;:\[\]]+):(\d{1,5})", address)  # IPv6 stands in brackets
    if not match or int(match[1]) > 65535:
        raise ServerUnavailable(f"expected the server's address as HOST:PORT, found {address!r}")


def _no_redirects() -> Any:
    """aiohttp would send images and keys on, to any host."""
    import aiohttp

    async def refuse(*unused: object) -> None:
        raise ValueError("a redirect")

    config = aiohttp.TraceConfig()
    config.on_request_redirect.append(refuse)
    config.freeze()
    return config


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


def _line(words: str) -> str:
    line = " ".join(words.split())
    return line if len(line) <= _LONGEST_WORDS else f"{line[:_LONGEST_WORDS]} …"


class _RetryBudget:
    """Limits retries at busy servers to a tenth of the answered requests, at most ten at once."""

    def __init__(self) -> None:
        self._saved = _MOST_SAVED

    def earn(self) -> None:
        self._saved = min(_MOST_SAVED, self._saved + _SAVED_SHARE)

    def spend(self) -> bool:
        allowed = self._saved >= 1
        self._saved -= allowed
        return allowed


def _pauses_s() -> Iterator[float]:
    """Each is twice the last, less up to half at random."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield random.uniform(pause_s / 2, pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class _Loop(asyncio.SelectorEventLoop):
    """Reports itself as closed in a forked child, where closing would disturb the parent's sockets."""

    def __init__(self) -> None:
        self._process = os.getpid()
        super().__init__()

    def is_closed(self) -> bool:
        return os.getpid() != self._process or super().is_closed()


class LoopThread:
    """Runs coroutines on an event loop of its own, for any thread."""

    def __init__(self, name: str) -> None:
        self._loop = _Loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name=name, daemon=True)
        self._stopped = False
        self._order = threading.Lock()
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Raises RuntimeError after `stop` and in a forked child."""
        if not self._loop.is_closed():  # first: a forked child may inherit a held lock
            with self._order:
                if not self._stopped:
                    return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise RuntimeError("expected an open classifier of this process, found a closed or forked one")

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """An interrupt cancels the coroutine."""
        return result_of(self.submit(coroutine))

    def stop(self, farewell: Callable[[], Awaitable[None]]) -> None:
        """Cancels all coroutines, then runs `farewell`."""
        if self._loop.is_closed():
            return
        with self._order:
            if self._stopped:
                return
            self._stopped = True
            asyncio.run_coroutine_threadsafe(_end(farewell), self._loop)
        if threading.current_thread() is not self._thread:  # the garbage collector may call here
            self._thread.join()


def result_of(future: "concurrent.futures.Future[T]") -> T:
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        raise RuntimeError("the classifier was closed while a request was under way") from None
    finally:
        future.cancel()  # only after an interrupt


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _end(farewell: Callable[[], Awaitable[None]]) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    try:
        await farewell()
    finally:
        asyncio.get_running_loop().stop()
