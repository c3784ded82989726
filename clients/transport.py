"""Sends requests to a list of servers, for asyncio, and repeats failed requests. Out: Triton's JSON and logits.

A request changes nothing at a server, so it may be repeated: at the next server of the list, then after a pause, until
`retry_s` has passed. Retries at busy servers are limited by a budget.
"""

import asyncio
import random
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.errors import DeadlineExceeded, ServerBusy, ServerError, ServerUnavailable
from clients.one_server import Server, check_address
from clients.options import Options
from common.framing import INPUT_NAME, OUTPUT_NAME

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_EARNED_PER_ANSWER, _MOST_RETRIES = 0.1, 10.0


class Connection:
    """Asks the servers of `options`, in the running event loop. `retry_s` may be changed between requests.

    Raises ServerUnavailable for an invalid address and for unreadable TLS files.
    """

    def __init__(self, options: Options) -> None:
        self.retry_s = options.retry_s
        self._options = options
        self._is_http = options.protocol == "http"
        self._json_options = {} if self._is_http else {"as_json": True}
        self._triton = import_module(f"tritonclient.{options.protocol}.aio")
        for address in options.addresses:
            check_address(address)
        self._servers = [Server(address, options) for address in options.addresses]
        self._budget = _RetryBudget()

    @property
    def url(self) -> str:
        return self._servers[0].address

    async def models(self) -> list[dict[str, Any]]:
        """Name, version, state and reason of every version in Triton's index.

        If the index needs a key, the ready versions, by Triton's statistics.
        """
        try:
            index = await self._ask("get_model_repository_index", **self._json_options)
            entries = index if self._is_http else index.get("models", [])
        except ServerError as refusal:
            if "is restricted" not in str(refusal):
                raise
            statistics = await self._ask("get_inference_statistics", **self._json_options)
            entries = [{**model, "state": "READY"} for model in self._object(statistics).get("model_stats", [])]
        if isinstance(entries, list) and all(
            isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in entries
        ):
            return entries
        raise self._servers[0].not_triton(f"expected a list of models, found {entries!r}")

    async def ready(self, name: str) -> bool:
        return bool(await self._ask("is_model_ready", name))

    async def metadata(self, name: str) -> dict[str, Any]:
        return self._object(await self._ask("get_model_metadata", name, **self._json_options))

    async def config(self, name: str) -> dict[str, Any]:
        config = await self._ask("get_model_config", name, **self._json_options)
        return self._object(config if self._is_http else config.get("config"))

    def _object(self, answer: Any) -> dict[str, Any]:
        """Raises ServerUnavailable unless the answer is a JSON object."""
        if not isinstance(answer, dict):
            raise self._servers[0].not_triton(f"expected a JSON object, found {answer!r}")
        return answer

    async def infer(self, name: str, batch: NDArray[np.uint8]) -> tuple[NDArray[np.float32], str]:
        """uint8 (b, C, H, W) -> float32 logits (b, classes), and the version that answered."""
        tensor = self._triton.InferInput(INPUT_NAME, list(batch.shape), "UINT8")
        tensor.set_data_from_numpy(np.asarray(batch))  # a masked array would send its fill value
        result = await self._ask("infer", name, [tensor], outputs=[self._triton.InferRequestedOutput(OUTPUT_NAME)])
        try:
            return np.asarray(result.as_numpy(OUTPUT_NAME), dtype=np.float32), self._version(result)
        except (LookupError, TypeError, ValueError) as error:  # fewer bytes than the shape needs
            raise ServerError(f"model {name!r}: the logits do not fit their shape: {error}") from error

    def _version(self, result: Any) -> str:
        response = result.get_response()
        return str(response["model_version"] if self._is_http else response.model_version)

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers))

    async def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Calls `method` of tritonclient at a server that answers, and retries until `retry_s`."""
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
        """Asks the servers in turn; the time until `end_s` is shared equally by the servers that are left.

        A server that does not answer moves to the end of the list.
        """
        for servers_left, server in zip(range(len(self._servers), 0, -1), [*self._servers], strict=True):
            timeout_s = (end_s - asyncio.get_running_loop().time()) / servers_left
            try:
                return await asyncio.wait_for(server.call(method, *arguments, **options), timeout_s)
            except asyncio.TimeoutError as error:
                if servers_left == 1:
                    raise DeadlineExceeded(
                        f"the server at {server.address} did not answer within {self._options.timeout_s:g} s"
                    ) from error
            except ServerUnavailable:
                if servers_left == 1:
                    raise
            if server is self._servers[0]:  # else another request has moved it already
                self._servers.append(self._servers.pop(0))
        raise AssertionError("a connection has at least one server")


class _RetryBudget:
    """Limits retries at busy servers to a tenth of the answered requests, with at most ten saved up."""

    def __init__(self) -> None:
        self._saved = _MOST_RETRIES

    def earn(self) -> None:
        self._saved = min(_MOST_RETRIES, self._saved + _EARNED_PER_ANSWER)

    def spend(self) -> bool:
        """Takes a saved retry; returns whether there was a retry to take."""
        allowed = self._saved >= 1
        self._saved -= allowed
        return allowed


def _pauses_s() -> Iterator[float]:
    """Random pauses between half and all of a bound, which doubles up to _LONGEST_PAUSE_S."""
    pause_s = _FIRST_PAUSE_S
    while True:
        yield random.uniform(pause_s / 2, pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
