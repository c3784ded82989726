"""Requests whose images and logits go through shared memory, in regions that are registered once and kept."""

import asyncio

import numpy as np
from numpy.typing import NDArray

from clients.batches import Images
from clients.connection import Connection
from clients.decode import ClientError
from clients.errors import ModelNotFound, ServerError
from clients.regions import Region

_RESTARTS = 2  # of the server, that one request is asked again after
_PATIENCE_S = 1.0  # for a server that is to forget a region


class RegionPool:
    """As many regions as requests were under way at a time, each with room for `rows` images of `image_bytes`."""

    def __init__(self, connection: Connection, rows: int, image_bytes: int, classes: int) -> None:
        self._connection = connection
        self._room = (rows, image_bytes, classes)
        self._free: list[Region] = []
        self._unwanted: list[Region] = []  # removed here, and in use by a request of the server's

    async def infer(self, name: str, batch: Images) -> tuple[NDArray[np.float32], str]:
        """Like Connection.infer; raises ClientError too where this host has no shared memory left."""
        for _ in range(_RESTARTS):
            try:
                return await self._infer_once(name, batch)
            except (ServerError, ModelNotFound) as error:
                if "shared memory region" not in str(error):
                    raise
            stale, self._free = self._free, []  # a server that was restarted knows none of before
            await self._discard(*stale)
        return await self._infer_once(name, batch)

    async def _infer_once(self, name: str, batch: Images) -> tuple[NDArray[np.float32], str]:
        region = self._free.pop() if self._free else await self._new()
        try:
            answer = await self._connection.infer(name, batch, region)
        except BaseException:  # the server may yet write to it, so that no other request must have it
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
        """Remove every region that no request has, on both sides; the server may finish with them for a moment."""
        regions, self._free = self._free, []
        await self._discard(*regions)
        end_s = asyncio.get_running_loop().time() + _PATIENCE_S
        while self._unwanted and asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(_PATIENCE_S / 20)
            await self._discard()

    async def _discard(self, *regions: Region) -> None:
        """Remove regions here at once, and have the server forget them and those that it did not let go before."""
        for region in regions:
            region.remove()
        unwanted, self._unwanted = [*self._unwanted, *regions], []
        forgotten = await asyncio.gather(*(self._forget(region) for region in unwanted))
        self._unwanted += [region for region, done in zip(unwanted, forgotten, strict=True) if not done]

    async def _forget(self, region: Region) -> bool:
        """Whether the server has forgotten the region; one that a request still uses it keeps."""
        try:
            await asyncio.wait_for(self._connection.unregister(region), _PATIENCE_S)
        except ServerError:
            return False
        except (ClientError, asyncio.TimeoutError):  # a server that is gone has forgotten it
            return True
        return True
