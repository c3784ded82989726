"""A typed client of the server: uint8 images in, labels with probabilities out.

    with Classifier() as classifier:
        for prediction in classifier.classify(images):  # uint8 (n, 1, 28, 28), 0 = background, 255 = ink
            print(prediction.label, prediction.probability)

The protocol is HTTP unless gRPC is asked for: at batch 1 both take the same time, and both give the same numbers.
A Classifier may be shared by threads: its requests run in an event loop of its own, in one thread, that takes them
from all others. It must not be carried into a forked child, where it raises RuntimeError. A program that runs an
event loop itself takes AsyncClassifier, which has the same methods.

tritonclient is imported when a connection is made, so that importing this module costs little.
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
from clients.batches import Images, gather
from clients.connection import Connection
from clients.decode import ClientError, InvalidImage
from clients.endpoint import BATCH_SIZE, CONCURRENCY, RETRY_S, TIMEOUT_S, Endpoint, Protocol, Tls
from clients.errors import (
    DeadlineExceeded,
    ModelMismatch,
    ModelNotFound,
    ModelNotReady,
    ServerError,
    ServerUnavailable,
)
from clients.loop_thread import LoopThread, result_of
from clients.prediction import Answer, Prediction, predictions
from clients.served import ListedModel, ServedModel, list_all

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
    "ServerError",
    "ServerUnavailable",
    "Tls",
    "list_models",
]


class Classifier:
    """A connection to one model of one server, to be closed or used as a context manager, from any thread.

    url:           HOST:PORT; without it the server's default port for the protocol on this machine.
    model:         a name; without it the only model that is ready or, of several, the transformer with the highest
                   test accuracy, then the first by name.
    timeout_s:     seconds for each request from its first try to its answer, without the wait for its turn.
    retry_s:       of these, seconds in which a request is tried again while the server is unavailable.
    batch_size:    images in a request, at most; never more than the model takes.
    concurrency:   requests with the server at a time, at most, of all threads together.
    shared_memory: the images go to a server on this host through memory and not through the network.
    tls, headers:  for guarded servers.

    Raises, here and in every call: ServerUnavailable, DeadlineExceeded, ServerError. Here also ModelNotFound,
    ModelNotReady and ModelMismatch, and ValueError for options that cannot be.
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
    ) -> None:
        self._asking = AsyncClassifier(
            url, model, protocol, timeout_s, retry_s, batch_size, concurrency, shared_memory, tls, headers
        )
        self._thread = LoopThread("classifier")
        self._close = weakref.finalize(self, self._thread.stop, self._asking.close)  # at the process's end too
        try:
            self._thread.run(self._asking.open())
        except BaseException:
            self.close()
            raise

    @property
    def model(self) -> ServedModel:
        return self._asking.model

    def classify(self, images: Images) -> list[Prediction]:
        """Images uint8 (n, 1, 28, 28) -> n predictions in order; more than a batch goes in several requests."""
        return self._thread.run(self._asking.classify(images))

    def logits(self, images: Images) -> NDArray[np.float32]:
        """Images uint8 (n, 1, 28, 28) -> float32 (n, classes)."""
        return self._thread.run(self._asking.logits(images))

    def stream(self, images: Iterable[Images]) -> Iterator[Prediction]:
        """Images (1, 28, 28) and batches of any length (n, 1, 28, 28), mixed -> a prediction for each, in order.

        An image waits until its batch is full or the images end. They are read in the caller's thread, as far ahead
        as twice the batches that may be with the server, so that memory stays flat however many there are.
        """
        held: deque[Future[Answer]] = deque()
        try:
            for batch in gather(images, self.model.image_shape, self._asking.batch_size):
                held.append(self._thread.submit(self._asking.answer(batch)))
                while held and (held[0].done() or len(held) >= 2 * self._asking.concurrency):
                    yield from predictions(result_of(held.popleft()), self.model.labels)
            while held:
                yield from predictions(result_of(held.popleft()), self.model.labels)
        finally:
            for future in held:
                future.cancel()

    def models(self) -> list[ListedModel]:
        """Every model of the server, by name; read anew at each call."""
        return self._thread.run(self._asking.models())

    def close(self) -> None:
        """End what is under way and leave nothing behind; again, nothing happens."""
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
    """Every model of a server, by name, where no Classifier is at hand; raises what a Classifier does."""

    async def listed() -> list[ListedModel]:
        connection = Connection(endpoint, concurrency=CONCURRENCY)
        try:
            return await list_all(connection)
        finally:
            await connection.close()

    endpoint = Endpoint(url, protocol, timeout_s, retry_s, tls, dict(headers or {}))
    return asyncio.run(listed())
