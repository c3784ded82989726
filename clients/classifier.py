"""A client of the server: uint8 images in, 0 = background, 255 = ink; labels with probabilities out.

Threads may share a Classifier; a forked child gets RuntimeError.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from clients.async_classifier import AsyncClassifier
from clients.errors import (
    ClientError,
    DeadlineExceeded,
    InvalidImage,
    ModelMismatch,
    ModelNotFound,
    ModelNotReady,
    ServerBusy,
    ServerError,
    ServerUnavailable,
)
from clients.prediction import Answer, Prediction
from clients.server.batches import Images, gather
from clients.server.connection import Connection
from clients.server.endpoint import BATCH_SIZE, CONCURRENCY, RETRY_S, TIMEOUT_S, Endpoint, Protocol, Tls
from clients.server.loop_thread import LoopThread, result_of
from clients.server.served import ListedModel, ServedModel, list_all

__all__ = [
    "AsyncClassifier",
    "Classifier",
    "ClientError",
    "DeadlineExceeded",
    "InvalidImage",
    "ListedModel",
    "ModelMismatch",
    "ModelNotFound",
    "ModelNotReady",
    "Prediction",
    "ServedModel",
    "ServerBusy",
    "ServerError",
    "ServerUnavailable",
    "Tls",
    "list_models",
]


class Classifier:
    """Methods, options and errors as in AsyncClassifier; the constructor opens.

    `timeout_s` excludes the wait for a turn; `concurrency` counts all threads' requests.
    """

    def __init__(
        self,
        url: str | None = None,
        model: str | None = None,
        protocol: Protocol = "http",
        timeout_s: float = TIMEOUT_S,
        retry_s: float = RETRY_S,
        batch_size: int = BATCH_SIZE,
        concurrency: int = CONCURRENCY,
        shared_memory: bool = False,
        tls: Tls | None = None,
        headers: Mapping[str, str] | None = None,
        open_retry_s: float | None = None,
    ) -> None:
        self._asking = AsyncClassifier(
            url, model, protocol, timeout_s, retry_s, batch_size, concurrency, shared_memory, tls, headers, open_retry_s
        )
        self._thread = LoopThread("classifier")
        self._close = weakref.finalize(self, self._thread.stop, self._asking.close)  # also at the end of the process
        try:
            self._thread.run(self._asking.open())
        except BaseException:
            self.close()
            raise

    @property
    def model(self) -> ServedModel:
        return self._asking.model

    def classify(self, images: Images) -> list[Prediction]:
        """uint8 (n, C, H, W) -> n predictions in order."""
        return self._thread.run(self._asking.classify(images))

    def logits(self, images: Images) -> NDArray[np.float32]:
        """uint8 (n, C, H, W) -> float32 (n, classes)."""
        return self._thread.run(self._asking.logits(images))

    def stream(self, images: Iterable[Images]) -> Iterator[Prediction]:
        """As AsyncClassifier.stream; the caller's thread reads images, a few batches ahead."""
        held: deque[Future[Answer]] = deque()
        try:
            for batch in gather(images, self.model.image_shape, self._asking.batch_size):
                held.append(self._thread.submit(self._asking.answer(batch)))
                while held and (held[0].done() or len(held) >= 2 * self._asking.concurrency):
                    yield from self._asking.predictions(result_of(held.popleft()))
            while held:
                yield from self._asking.predictions(result_of(held.popleft()))
        finally:
            for future in held:
                future.cancel()

    def models(self) -> list[ListedModel]:
        return self._thread.run(self._asking.models())

    def close(self) -> None:
        """Cancels open requests."""
        self._close()

    def __enter__(self) -> "Classifier":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def list_models(
    url: str | None = None,
    protocol: Protocol = "http",
    timeout_s: float = TIMEOUT_S,
    retry_s: float = RETRY_S,
    tls: Tls | None = None,
    headers: Mapping[str, str] | None = None,
) -> list[ListedModel]:
    """Sorted by name; raises the errors of Classifier."""

    async def listed() -> list[ListedModel]:
        connection = Connection(endpoint, concurrency=CONCURRENCY)
        try:
            return await list_all(connection)
        finally:
            await connection.close()

    endpoint = Endpoint(url, protocol, timeout_s, retry_s, tls, dict(headers or {}))
    return asyncio.run(listed())
