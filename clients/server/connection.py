"""Requests in, Triton's JSON and logits out, from servers with the same models.

Inference changes nothing, so requests may be repeated: at the next server, then after a pause, until `retry_s`; at busy
servers only within the retry budget.
"""

import asyncio
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.errors import DeadlineExceeded, ServerBusy, ServerError, ServerUnavailable
from clients.server.endpoint import Endpoint
from clients.server.regions import Region
from clients.server.retrying import RetryBudget, pauses_s
from clients.server.transport import Transport, check_address

INPUT, OUTPUT = "image", "logits"


class Connection:
    """For the running event loop; raises ServerUnavailable for an invalid address and unreadable TLS files."""

    def __init__(self, endpoint: Endpoint, concurrency: int) -> None:
        self.retry_s = endpoint.retry_s
        self._endpoint = endpoint
        self._is_http = endpoint.protocol == "http"
        self._as_json = {} if self._is_http else {"as_json": True}
        self._triton = import_module(f"tritonclient.{endpoint.protocol}.aio")
        for address in endpoint.addresses:
            check_address(address)
        self._servers = [Transport(address, endpoint, concurrency) for address in endpoint.addresses]
        self._budget = RetryBudget()

    @property
    def url(self) -> str:
        return self._servers[0].address

    async def models(self) -> list[dict[str, Any]]:
        """Name, version, state and reason of every version."""
        index = await self._ask("get_model_repository_index", **self._as_json)
        entries = index if self._is_http else index.get("models", [])
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

    async def register(self, region: Region) -> None:
        await self._ask("register_system_shared_memory", region.name, region.key, region.size)

    async def unregister(self, region: Region) -> None:
        """Tries once, without a deadline."""
        await self._servers[0].call("unregister_system_shared_memory", region.name)

    async def infer(
        self, name: str, batch: NDArray[np.uint8], region: Region | None = None
    ) -> tuple[NDArray[np.float32], str]:
        """(b, 1, 28, 28) -> logits (b, classes) and the version that answered.

        Both go through `region`, which must be registered.
        """
        tensor = self._triton.InferInput(INPUT, list(batch.shape), "UINT8")
        wanted = self._triton.InferRequestedOutput(OUTPUT)
        if region is None:
            tensor.set_data_from_numpy(np.asarray(batch))  # a masked array would send its fill value
        else:
            region.write(batch)
            tensor.set_shared_memory(region.name, batch.nbytes)
            wanted.set_shared_memory(region.name, region.logits_bytes(len(batch)), region.logits_offset)
        result = await self._ask("infer", name, [tensor], outputs=[wanted])
        try:
            return self._logits(result, region), self._version(result)
        except (LookupError, TypeError, ValueError) as error:  # fewer bytes than its shape has
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
        await asyncio.gather(*(server.close() for server in self._servers))

    async def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        clock = asyncio.get_running_loop().time
        end_s = clock() + self._endpoint.timeout_s
        last_try_s = clock() + min(self.retry_s, self._endpoint.timeout_s)
        pauses = pauses_s()
        while True:
            try:
                answer = await self._ask_round(end_s, method, *arguments, **options)
            except ServerUnavailable as failure:
                pause_s = next(pauses) + failure.retry_after_s
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
                        f"the server at {server.address} did not answer within {self._endpoint.timeout_s:g} s"
                    ) from error
            except ServerUnavailable:
                if left == 1:
                    raise
            if server is self._servers[0]:  # else another request has moved it
                self._servers.append(self._servers.pop(0))
        raise AssertionError("a connection has at least one server")
