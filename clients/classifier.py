"""Clients of the server, for threads and for asyncio: uint8 images in, labels with probabilities out.

In an image 0 is background and 255 ink. Threads may share a Classifier; a forked child that uses it gets
RuntimeError.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import aclosing
from functools import partial
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from clients.batches import Images, as_async, gather, gather_async, split
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
from clients.loop_thread import LoopThread, result_of
from clients.one_server import Server
from clients.options import DEFAULTS, Options, Tls
from clients.prediction import Answer, Prediction, predictions
from clients.retry_and_failover import Connection
from clients.served_models import ListedModel, ServedModel, choose_model, find_model, list_all

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
    "Options",
    "Prediction",
    "ServedModel",
    "ServerBusy",
    "ServerError",
    "ServerUnavailable",
    "Tls",
    "list_models",
]

CHECKED_AFTER_NS = 10**9  # an answer later than this after the last description reads the description again


class AsyncClassifier:
    """Classifies images by a model on a server, in the event loop that opened the connection.

    model: the model's name on the server, needed if the models there have different labels. Default: the most accurate
    transformer, else the most accurate CNN.

    All methods raise ServerUnavailable (or ServerBusy), DeadlineExceeded and ServerError; open(), and the first answer
    of another version, also ModelNotFound, ModelNotReady and ModelMismatch.
    """

    model: ServedModel  # as the version of the last answer describes it
    batch_size: int  # images per request: the option, or the model's limit if that is lower

    def __init__(self, options: Options = DEFAULTS, model: str | None = None) -> None:
        self.options = options
        self._model_name = model
        self._models: dict[str, ServedModel] = {}  # version -> the model as described while that version answered
        self._tasks: set[asyncio.Task[Answer]] = set()
        self._connection: Connection | None = None

    async def open(self) -> "AsyncClassifier":
        """Connects and reads the model's description; returns this object."""
        self._connection = connection = Connection(self.options)
        self._turns = asyncio.Semaphore(self.options.concurrency)  # of this loop
        try:
            if self.options.open_retry_s is not None:
                connection.retry_s = self.options.open_retry_s
            self.model = await (
                choose_model(connection) if self._model_name is None else find_model(connection, self._model_name)
            )
            self._models = dict.fromkeys(self.model.versions[-1:], self.model)
            self._described_ns = perf_counter_ns()
            connection.retry_s = self.options.retry_s
        except BaseException:
            await self.close()
            raise
        self.batch_size = min(self.options.batch_size, self.model.max_batch_size)
        return self

    async def classify(self, images: Images) -> list[Prediction]:
        """uint8 (n, C, H, W) -> n predictions in order. Raises InvalidImage for another dtype or shape."""
        answers = self._answers(split(images, self.model.image_shape, self.batch_size))
        return [prediction async for answer in answers for prediction in self.predictions(answer)]

    async def logits(self, images: Images) -> NDArray[np.float32]:
        """uint8 (n, C, H, W) -> float32 logits (n, classes). Raises InvalidImage for another dtype or shape."""
        answers = self._answers(split(images, self.model.image_shape, self.batch_size))
        empty = np.empty((0, len(self.model.labels)), dtype=np.float32)
        return np.concatenate([empty, *[answer.logits async for answer in answers]])

    async def stream(self, images: Iterable[Images] | AsyncIterable[Images]) -> AsyncIterator[Prediction]:
        """uint8 images (C, H, W) and batches (n, C, H, W), mixed -> a prediction per image, in order.

        An image waits until its batch is full or the images end.
        """
        batches = gather_async(images, self.model.image_shape, self.batch_size)
        async with aclosing(self._answers(batches)) as answers:
            async for answer in answers:
                for prediction in self.predictions(answer):
                    yield prediction

    def predictions(self, answer: Answer) -> list[Prediction]:
        """The server's answer to b images -> b predictions in order."""
        return predictions(answer, self.model.labels, self._models[answer.version].temperature)

    async def models(self) -> list[ListedModel]:
        """All models of the server, sorted by name."""
        return await list_all(self._open_connection())

    async def answer(self, batch: Images) -> Answer:
        """uint8 (b, C, H, W), b at most `batch_size` -> the server's answer."""
        connection = self._open_connection()
        async with self._turns:
            start_ns = perf_counter_ns()
            logits, version = await connection.ask(Server.infer, self.model.name, batch)
            latency_ms = (perf_counter_ns() - start_ns) / 1e6
            if version not in self._models or perf_counter_ns() - self._described_ns > CHECKED_AFTER_NS:
                # Promoted or rolled back since, or deleted and exported anew under the same number.
                described = await self._describe_again(connection)
                if version not in self._models or version in described.versions[-1:]:
                    self._models[version] = described
                self._described_ns = perf_counter_ns()
            self.model = self._models[version]
        finite = bool(np.isfinite(logits).all())
        expected = (len(batch), len(self.model.labels))
        if logits.shape != expected or not finite:
            raise ServerError(
                f"model {self.model.name!r}: expected finite logits {expected}, "
                f"found {logits.shape}{'' if finite else ' with values that are not finite'}"
            )
        return Answer(logits, version, latency_ms)

    async def close(self) -> None:
        """Cancels open requests and closes the connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def __aenter__(self) -> "AsyncClassifier":
        return await self.open()

    async def __aexit__(self, *unused: object) -> None:
        await self.close()

    async def _describe_again(self, connection: Connection) -> ServedModel:
        """The model as it is served now. Raises ModelMismatch for other classes or images than until now."""
        model = await find_model(connection, self.model.name)
        if (model.labels, model.image_shape) != (self.model.labels, self.model.image_shape):
            raise ModelMismatch(
                f"model {model.name!r} at {connection.url}: expected {self.model.image_shape} images of the classes "
                f"{', '.join(self.model.labels)}, found {model.image_shape} and {', '.join(model.labels)}"
            )
        return model

    def _open_connection(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("expected an open classifier, found it closed or not opened")
        return self._connection

    async def _answers(self, batches: Iterable[Images] | AsyncIterable[Images]) -> AsyncGenerator[Answer, None]:
        """Sends a request per batch, `concurrency` at a time, and yields the answers in order.

        At most twice as many batches are in memory: sent, or answered but not yet yielded.
        """
        pending: deque[asyncio.Task[Answer]] = deque()
        try:
            async for batch in as_async(batches):
                pending.append(self._start(batch))
                while pending and (pending[0].done() or len(pending) >= 2 * self.options.concurrency):
                    yield await pending.popleft()
            while pending:
                yield await pending.popleft()
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    def _start(self, batch: Images) -> "asyncio.Task[Answer]":
        task = asyncio.create_task(self.answer(batch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class Classifier:
    """AsyncClassifier for threads, with the same methods and errors; the constructor connects.

    All threads together send at most `concurrency` requests at a time. `timeout_s` does not count the wait for a turn.
    """

    def __init__(self, options: Options = DEFAULTS, model: str | None = None) -> None:
        self._async_classifier = AsyncClassifier(options, model)
        self._thread = LoopThread("classifier")
        # The end of the process closes, too.
        self._close = weakref.finalize(self, self._thread.stop, self._async_classifier.close)
        try:
            self._thread.run(self._async_classifier.open())
        except BaseException:
            self.close()
            raise

    @property
    def model(self) -> ServedModel:
        return self._async_classifier.model

    def classify(self, images: Images) -> list[Prediction]:
        """uint8 (n, C, H, W) -> n predictions in order. Raises InvalidImage for another dtype or shape."""
        return self._thread.run(self._async_classifier.classify(images))

    def logits(self, images: Images) -> NDArray[np.float32]:
        """uint8 (n, C, H, W) -> float32 logits (n, classes). Raises InvalidImage for another dtype or shape."""
        return self._thread.run(self._async_classifier.logits(images))

    def stream(self, images: Iterable[Images]) -> Iterator[Prediction]:
        """As AsyncClassifier.stream. The caller's thread reads the images, at most 2 `concurrency` batches ahead."""
        pending: deque[Future[Answer]] = deque()
        try:
            for batch in gather(images, self.model.image_shape, self._async_classifier.batch_size):
                pending.append(self._thread.submit(self._async_classifier.answer(batch)))
                while pending and (pending[0].done() or len(pending) >= 2 * self._async_classifier.options.concurrency):
                    yield from self._async_classifier.predictions(result_of(pending.popleft()))
            while pending:
                yield from self._async_classifier.predictions(result_of(pending.popleft()))
        finally:
            for future in pending:
                future.cancel()

    def models(self) -> list[ListedModel]:
        """All models of the server, sorted by name."""
        return self._thread.run(self._async_classifier.models())

    def close(self) -> None:
        """Cancels open requests, closes the connection and ends the thread."""
        self._close()

    def __enter__(self) -> "Classifier":
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


def list_models(options: Options = DEFAULTS) -> list[ListedModel]:
    """All models of the server, sorted by name. Raises ServerUnavailable, DeadlineExceeded and ServerError."""

    async def list_and_close() -> list[ListedModel]:
        connection = Connection(options)
        try:
            return await list_all(connection)
        finally:
            await connection.close()

    thread = LoopThread("models")  # in a notebook the caller's thread runs a loop already
    try:
        return thread.run(list_and_close())
    finally:
        thread.stop(partial(asyncio.sleep, 0))
