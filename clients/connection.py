"""One server asked through tritonclient's asyncio clients: its JSON in dictionaries, its failures as our errors.

A request is tried again, after a pause that doubles and is drawn at random, while the server cannot be reached or
says that it is unavailable: an inference changes nothing, so asking twice is safe. Retries end with the endpoint's
`retry_s`, everything with its `timeout_s`. Neither protocol follows proxy variables.
"""

import asyncio
import random
import re
import ssl
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.decode import ClientError
from clients.endpoint import Endpoint
from clients.errors import DeadlineExceeded, ModelNotFound, ServerError, ServerUnavailable
from clients.regions import Region

INPUT, OUTPUT = "image", "logits"

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_PASSING = ("StatusCode.UNAVAILABLE", "502", "503", "504")  # too busy, starting, or a proxy that finds it so
_NOT_FOUND = ("StatusCode.NOT_FOUND", "404")
# What grpc says, with the status of a busy server, where there is none.
_GRPC_UNCONNECTED = ("failed to connect", "errors resolving", "DNS resolution failed")
_LONGEST_WORDS = 500  # characters of a server's message that an error repeats
# grpc waits a second, later two minutes, before it dials an address again that refused; our own pauses are enough.
_GRPC_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
]


class Connection:
    """To be made, used and closed in one running event loop; `concurrency` inferences come at a time, at most.

    Raises ServerUnavailable for an address that is none and for TLS files that cannot be read.
    """

    def __init__(self, endpoint: Endpoint, concurrency: int) -> None:
        self.url = endpoint.address
        if not re.fullmatch(r"[^\s/@?#]+:\d{1,5}", self.url) or int(self.url.rpartition(":")[2]) > 65535:
            raise ServerUnavailable(f"expected the server's address as HOST:PORT, found {self.url!r}")
        self._endpoint = endpoint
        self._is_http = endpoint.protocol == "http"
        self._as_json = {} if self._is_http else {"as_json": True}
        self._headers = {name if self._is_http else name.lower(): value for name, value in endpoint.headers.items()}
        self._triton = import_module(f"tritonclient.{endpoint.protocol}.aio")
        self._lost, self._garbled = _failures(self._is_http)
        try:
            options = self._http_options(concurrency) if self._is_http else self._grpc_options()
            self._client = self._triton.InferenceServerClient(self.url, **options)
        except OSError as error:  # ssl's errors too
            raise ServerUnavailable(f"expected PEM files for TLS to {self.url}, found {error}") from error

    def _http_options(self, concurrency: int) -> dict[str, Any]:
        tls = self._endpoint.tls
        options: dict[str, Any] = {"conn_limit": concurrency + 1, "conn_timeout": None}  # one to ask other things
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

    async def models(self) -> list[dict[str, Any]]:
        """Name, version, state and reason of every version of every model in the repository."""
        index = await self._ask("get_model_repository_index", **self._as_json)
        entries = index if self._is_http else index.get("models", [])
        if isinstance(entries, list) and all(
            isinstance(each, dict) and isinstance(each.get("name"), str) for each in entries
        ):
            return entries
        raise self._no_triton(f"expected a list of models, found {entries!r}")

    async def ready(self, name: str) -> bool:
        return bool(await self._ask("is_model_ready", name))

    async def metadata(self, name: str) -> dict[str, Any]:
        """The versions that are ready and the tensors, as in Triton's JSON."""
        return self._object(await self._ask("get_model_metadata", name, **self._as_json))

    async def config(self, name: str) -> dict[str, Any]:
        """What stands in config.pbtxt, as in Triton's JSON."""
        config = await self._ask("get_model_config", name, **self._as_json)
        return self._object(config if self._is_http else config.get("config"))

    def _object(self, answer: Any) -> dict[str, Any]:
        if not isinstance(answer, dict):
            raise self._no_triton(f"expected a JSON object, found {answer!r}")
        return answer

    async def register(self, region: Region) -> None:
        await self._ask("register_system_shared_memory", region.name, region.key, region.size)

    async def unregister(self, region: Region) -> None:
        """Have the server forget a region, known to it or not; one try, with no limit of its own."""
        await self._try("unregister_system_shared_memory", region.name)

    async def infer(
        self, name: str, batch: NDArray[np.uint8], region: Region | None = None
    ) -> tuple[NDArray[np.float32], str]:
        """Images (b, 1, 28, 28) -> logits (b, classes) and the version of the model that answered.

        With a region, which has been registered, the pixels and logits go through it and not through the network.
        """
        tensor = self._triton.InferInput(INPUT, list(batch.shape), "UINT8")
        wanted = self._triton.InferRequestedOutput(OUTPUT)
        if region is None:
            tensor.set_data_from_numpy(batch)
        else:
            region.write(batch)
            tensor.set_shared_memory(region.name, batch.nbytes)
            wanted.set_shared_memory(region.name, region.logits_bytes(len(batch)), region.logits_offset)
        result = await self._ask("infer", name, [tensor], outputs=[wanted])
        try:
            return self._logits(result, region), self._version(result)
        except (LookupError, TypeError, ValueError) as error:  # fewer bytes than the shape that came with them
            raise ServerError(f"model {name!r}: the logits do not fit their shape: {error}") from error

    def _logits(self, result: Any, region: Region | None) -> NDArray[np.float32]:
        if region is None:
            return np.asarray(result.as_numpy(OUTPUT), dtype=np.float32)
        output = result.get_output(OUTPUT)
        shape = output["shape"] if self._is_http else output.shape
        return region.read([int(extent) for extent in shape])

    def _version(self, result: Any) -> str:
        response = result.get_response()
        return str(response["model_version"] if self._is_http else response.model_version)

    async def close(self) -> None:
        await self._client.close()

    async def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of tritonclient until it answers, the failure is one that stays, or time is up."""
        clock = asyncio.get_running_loop().time
        end_s = clock() + self._endpoint.timeout_s
        last_try_s = clock() + min(self._endpoint.retry_s, self._endpoint.timeout_s)
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return await asyncio.wait_for(self._try(method, *arguments, **options), end_s - clock())
            except asyncio.TimeoutError as error:
                raise DeadlineExceeded(
                    f"the server at {self.url} did not answer within {self._endpoint.timeout_s:g} s"
                ) from error
            except ServerUnavailable as error:
                drawn_s = random.uniform(pause_s / 2, pause_s)
                if not error.may_pass or clock() + drawn_s > last_try_s:
                    raise
            await asyncio.sleep(drawn_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _try(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of tritonclient once, and turn what it raises into our errors."""
        from tritonclient.utils import InferenceServerException

        try:
            return await getattr(self._client, method)(*arguments, headers=dict(self._headers), **options)
        except InferenceServerException as error:
            raise self._refused(error) from error
        except self._lost as error:
            raise self._unreachable(str(error), may_pass=not isinstance(error, ssl.SSLError)) from error
        except self._garbled as error:
            raise self._no_triton(repr(error)) from error

    def _refused(self, error: Any) -> ClientError:
        """The error of ours for tritonclient's, which has the server's words and a status of HTTP or gRPC."""
        words, status = _line(error.message() or ""), error.status()
        if self._is_http and error.debug_details() and status not in _PASSING:  # the body is no JSON of Triton's
            return self._no_triton(f"HTTP {status}, {words}")
        if not self._is_http and words.startswith(_GRPC_UNCONNECTED):
            return self._unreachable(words, may_pass=True)
        if status in _PASSING and "protocol is restricted" not in words:  # over gRPC that has the same status
            return ServerUnavailable(f"the server at {self.url} is unavailable: {words}", may_pass=True)
        kind = ModelNotFound if status in _NOT_FOUND else ServerError
        return kind(f"the server at {self.url} answered: {words}")

    def _no_triton(self, words: str) -> ServerUnavailable:
        return self._unreachable(words, may_pass=False)

    def _unreachable(self, words: str, may_pass: bool) -> ServerUnavailable:
        return ServerUnavailable(
            f"no Triton server answers at {self.url} over {self._endpoint.protocol} ({_line(words)}); "
            "start one with: tritonserver --model-repository triton_repo",
            may_pass,
        )


Errors = tuple[type[Exception], ...]


def _failures(is_http: bool) -> tuple[Errors, Errors]:
    """What tritonclient lets through of connections that break, and of answers that are no HTTP or another JSON."""
    if not is_http:
        return (OSError,), (ValueError, TypeError, LookupError)
    import aiohttp

    lost = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, OSError)
    return lost, (aiohttp.ClientError, ValueError, TypeError, LookupError)


def _line(words: str) -> str:
    """A server's message on one line of bearable length."""
    line = " ".join(words.split())
    return line if len(line) <= _LONGEST_WORDS else f"{line[:_LONGEST_WORDS]} …"
