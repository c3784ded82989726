"""The client for asyncio programs."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from time import perf_counter_ns
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from clients.errors import ServerError
from clients.prediction import Answer, Prediction, predictions
from clients.server.batches import Images, as_async, gather_async, split
from clients.server.connection import Connection
from clients.server.endpoint import BATCH_SIZE, CONCURRENCY, RETRY_S, TIMEOUT_S, Endpoint, Protocol, Tls
from clients.server.region_pool import RegionPool
from clients.server.served import ListedModel, ServedModel, choose, find, list_all


class AsyncClassifier:
    """A connection to one model, bound to the event loop that opened it.

    url:           HOST:PORT, or several with commas for failover. Default: Triton's local port.
    model:         default: the most accurate, transformers first.
    timeout_s:     per request, retries included.
    retry_s:       of timeout_s, for retries at an absent or busy server.
    batch_size:    most images per request, within the model's limit.
    concurrency:   most requests at a time; twice as many batches are in memory.
    shared_memory: passes images through memory, to a server on this host.
    open_retry_s:  replaces retry_s while opening.
    tls, headers:  for guarded servers.

    Calls raise ServerUnavailable (or ServerBusy), DeadlineExceeded and ServerError; open() also ModelNotFound,
    ModelNotReady and ModelMismatch. Invalid options raise ValueError.
    """

    model: ServedModel

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
        if batch_size < 1 or concurrency < 1:
            raise ValueError(f"expected batch_size and concurrency of 1 or more, found {batch_size} and {concurrency}")
        self._endpoint = Endpoint(url, protocol, timeout_s, retry_s, tls, dict(headers or {}), open_retry_s)
        if shared_memory and len(self._endpoint.addresses) > 1:
            raise ValueError(f"shared_memory: expected one server, on this host, found the addresses {url!r}")
        self._wanted = model
        self._shared_memory = shared_memory
        self.batch_size = batch_size
        self.concurrency = concurrency
        self._turns = asyncio.Semaphore(concurrency)
        self._tasks: set[asyncio.Task[Answer]] = set()
        self._connection: Connection | None = None
        self._regions: RegionPool | None = None

    async def open(self) -> "AsyncClassifier":
        self._connection = connection = Connection(self._endpoint, self.concurrency)
        try:
            if self._endpoint.open_retry_s is not None:
                connection.retry_s = self._endpoint.open_retry_s
            self.model = await (choose(connection) if self._wanted is None else find(connection, self._wanted))
            connection.retry_s = self._endpoint.retry_s
        except BaseException:
            await self.close()
            raise
        self.batch_size = min(self.batch_size, self.model.max_batch_size)
        if self._shared_memory:
            image_bytes = math.prod(self.model.image_shape)
            self._regions = RegionPool(connection, self.batch_size, image_bytes, len(self.model.labels))
        return self

    async def classify(self, images: Images) -> list[Prediction]:
        """uint8 (n, 1, 28, 28) -> n predictions in order."""
        answers = self._answers(split(images, self.model.image_shape, self.batch_size))
        return [prediction async for answer in answers for prediction in self.predictions(answer)]

    async def logits(self, images: Images) -> NDArray[np.float32]:
        """uint8 (n, 1, 28, 28) -> float32 (n, classes)."""
        answers = self._answers(split(images, self.model.image_shape, self.batch_size))
        empty = np.empty((0, len(self.model.labels)), dtype=np.float32)
        return np.concatenate([empty, *[answer.logits async for answer in answers]])

    async def stream(self, images: Iterable[Images] | AsyncIterable[Images]) -> AsyncIterator[Prediction]:
        """Images (1, 28, 28) and batches (n, 1, 28, 28), mixed -> a prediction for each, in order.

        An image waits until its batch is full or the images end.
        """
        batches = gather_async(images, self.model.image_shape, self.batch_size)
        async with aclosing(self._answers(batches)) as answers:
            async for answer in answers:
                for prediction in self.predictions(answer):
                    yield prediction

    def predictions(self, answer: Answer) -> list[Prediction]:
        return predictions(answer, self.model.labels, self.model.temperature)

    async def models(self) -> list[ListedModel]:
        return await list_all(self._opened())

    async def answer(self, batch: Images) -> Answer:
        """For at most a batch (b, 1, 28, 28)."""
        connection = self._opened()
        async with self._turns:
            start_ns = perf_counter_ns()
            infer = connection.infer if self._regions is None else self._regions.infer
            logits, version = await infer(self.model.name, batch)
            latency_ms = (perf_counter_ns() - start_ns) / 1e6
        finite = bool(np.isfinite(logits).all())
        expected = (len(batch), len(self.model.labels))
        if logits.shape != expected or not finite:
            raise ServerError(
                f"model {self.model.name!r}: expected finite logits {expected}, "
                f"found {logits.shape}{'' if finite else ' with values that are not finite'}"
            )
        return Answer(logits, version, latency_ms)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._regions is not None:
            await self._regions.close()
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def __aenter__(self) -> "AsyncClassifier":
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _opened(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("expected an open classifier, found it closed or not opened")
        return self._connection

    async def _answers(self, batches: Iterable[Images] | AsyncIterable[Images]) -> AsyncGenerator[Answer, None]:
        held: deque[asyncio.Task[Answer]] = deque()
        try:
            async for batch in as_async(batches):
                held.append(self._start(batch))
                while held and (held[0].done() or len(held) >= 2 * self.concurrency):
                    yield await held.popleft()
            while held:
                yield await held.popleft()
        finally:
            for task in held:
                task.cancel()
            await asyncio.gather(*held, return_exceptions=True)

    def _start(self, batch: Images) -> "asyncio.Task[Answer]":
        task = asyncio.create_task(self.answer(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
