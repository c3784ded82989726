"""Requests through shared memory, in regions registered once and reused."""

import asyncio

import numpy as np
from numpy.typing import NDArray

from clients.errors import ClientError, ModelNotFound, ServerError
from clients.server.batches import Images
from clients.server.connection import Connection
from clients.server.regions import Region

_RESTARTS = 2  # of the server, survived by a request
_PATIENCE_S = 1.0  # for the server to forget a region


class RegionPool:
    """A region of `rows` images per concurrent request."""

    def __init__(self, connection: Connection, rows: int, image_bytes: int, classes: int) -> None:
        self._connection = connection
        self._room = (rows, image_bytes, classes)
        self._free: list[Region] = []
        self._unwanted: list[Region] = []  # removed here, still in use by the server

    async def infer(self, name: str, batch: Images) -> tuple[NDArray[np.float32], str]:
        """Like Connection.infer; also raises ClientError if shared memory is short."""
        for _ in range(_RESTARTS):
            try:
                return await self._infer_once(name, batch)
            except (ServerError, ModelNotFound) as error:
                if "shared memory region" not in str(error):
                    raise
            stale, self._free = self._free, []  # a restarted server knows no region
            await self._discard(*stale)
        return await self._infer_once(name, batch)

    async def _infer_once(self, name: str, batch: Images) -> tuple[NDArray[np.float32], str]:
        region = self._free.pop() if self._free else await self._new()
        try:
            answer = await self._connection.infer(name, batch, region)
        except BaseException:  # the server may still write to it
            await self._discard(region)
            raise
        self._free.append(region)
        return answer

    async def _new(self) -> Region:
        region = Region(*self._room)
        try:
            await self._connection.register(region)
        except ServerError as error:
            region.remove()
            raise ServerError(f"{error} (shared memory needs a server on this host that permits it)") from error
        except BaseException:
            await self._discard(region)
            raise
        return region

    async def close(self) -> None:
        regions, self._free = self._free, []
        await self._discard(*regions)
        end_s = asyncio.get_running_loop().time() + _PATIENCE_S
        while self._unwanted and asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(_PATIENCE_S / 20)
            await self._discard()

    async def _discard(self, *regions: Region) -> None:
        for region in regions:
            region.remove()
        unwanted, self._unwanted = [*self._unwanted, *regions], []
        forgotten = await asyncio.gather(*(self._forget(region) for region in unwanted))
        self._unwanted += [region for region, done in zip(unwanted, forgotten, strict=True) if not done]

    async def _forget(self, region: Region) -> bool:
        """Returns False for a region in use."""
        try:
            await asyncio.wait_for(self._connection.unregister(region), _PATIENCE_S)
        except ServerError:
            return False
        except (ClientError, asyncio.TimeoutError):  # a dead server has forgotten it
            return True
        return True
