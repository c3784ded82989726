"""Asks a list of servers, for asyncio, and repeats failed requests. In: a question of `Server`. Out: its answer.

A request changes nothing at a server, so it may be repeated: at the next server of the list, then after a pause, until
`retry_s` has passed. Retries at busy servers are limited by a budget.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

from clients.errors import DeadlineExceeded, ServerBusy, ServerUnavailable
from clients.one_server import Server, check_address
from clients.options import Options

P = ParamSpec("P")
T = TypeVar("T")

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_EARNED_PER_ANSWER, _MOST_RETRIES = 0.1, 10.0


class Connection:
    """Asks the servers of `options`, in the running event loop. `retry_s` may be changed between requests.

    Raises ServerUnavailable for an invalid address and for unreadable TLS files.
    """

    def __init__(self, options: Options) -> None:
        self.retry_s = options.retry_s
        self._options = options
        for address in options.addresses:
            check_address(address)
        self._servers = [Server(address, options) for address in options.addresses]
        self._budget = _RetryBudget()

    @property
    def url(self) -> str:
        return self._servers[0].address

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers))

    async def ask(
        self, question: Callable[Concatenate[Server, P], Awaitable[T]], *arguments: P.args, **options: P.kwargs
    ) -> T:
        """The answer of a server to a question, such as Server.models. Asks again until `retry_s`."""
        clock = asyncio.get_running_loop().time
        end_s = clock() + self._options.timeout_s
        last_try_s = clock() + min(self.retry_s, self._options.timeout_s)
        pauses = _pauses_s()
        while True:
            try:
                answer = await self._ask_round(end_s, lambda server: question(server, *arguments, **options))
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

    async def _ask_round(self, end_s: float, question: Callable[[Server], Awaitable[T]]) -> T:
        """Asks the servers in turn; the time until `end_s` is shared equally by the servers that are left.

        A server that does not answer moves to the end of the list.
        """
        for servers_left, server in zip(range(len(self._servers), 0, -1), [*self._servers], strict=True):
            timeout_s = (end_s - asyncio.get_running_loop().time()) / servers_left
            try:
                return await asyncio.wait_for(question(server), timeout_s)
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
