"""Requests to a model over HTTP, with a comparison of every answer.

In: a server, and questions with their expected answers. Out: `Verdicts`, which count right, wrong, refused and failed
answers.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.drills.hostile_requests import LENGTH
from benchmarks.measure.result_file import Record, Row
from clients.probing.stored_samples import parse_outputs

MOST = 100_000  # requests of an open loop
TOLERANCE = 1e-3
ANSWER_S, RETRY_S, CAPACITY_S = 30.0, 0.05, 3.0


def record_each(record: Record, rows: Iterable[Row]) -> None:
    """Prints and writes each row as soon as it is measured."""
    for row in rows:
        texts = {name: f"{value:.1f}" if isinstance(value, float) else str(value) for name, value in row.items()}
        click.echo("  ".join(f"{name} {text}" for name, text in texts.items()))
        record.add(row)


@dataclass
class Verdicts:
    """What became of the requests.

    `right`: (start, seconds) of each right answer. `refused`: seconds until each refusal (HTTP 503). `wrong`, `failed`:
    counts. `late`: by how many seconds an open loop sent each request late.
    """

    right: list[tuple[float, float]] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    wrong: int = 0
    failed: int = 0
    late: list[float] = field(default_factory=list)

    @property
    def sent(self) -> int:
        return len(self.right) + len(self.refused) + self.wrong + self.failed

    def recovery_s(self, fault: float) -> float | None:
        """Seconds from the time `fault` to the end of the longest gap between right answers; None if none came."""
        starts = sorted(start for start, _ in self.right if start > fault)  # `right` is in the order of the answers
        gaps = [(later - earlier, later) for earlier, later in zip([fault, *starts], starts, strict=False)]
        return max(gaps)[1] - fault if gaps else None

    def row(self) -> dict[str, Any]:
        """The counts, and latencies in ms."""
        latencies = [1e3 * seconds for _, seconds in self.right]
        counts = {"sent": self.sent, "right": len(self.right), "wrong": self.wrong, "refused": len(self.refused)}
        return {
            **counts,
            "failed": self.failed,
            "p50_ms": _quantile(latencies, 0.5),
            "p99_ms": _quantile(latencies, 0.99),
            "worst_ms": _quantile(latencies, 1),
            "refusal_p50_ms": _quantile([1e3 * seconds for seconds in self.refused], 0.5),
            "refusal_p99_ms": _quantile([1e3 * seconds for seconds in self.refused], 0.99),
            "late_p99_ms": _quantile([1e3 * seconds for seconds in self.late], 0.99),
        }


def after(count: int) -> Callable[[], bool]:
    """The argument `until` of a closed loop that sends `count` requests."""
    remaining = iter(range(count))
    return lambda: next(remaining, None) is None


def _quantile(values: list[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None


@contextmanager
def meanwhile(ask: Callable[[Callable[[], bool], Verdicts], object]) -> Iterator[Verdicts]:
    """Runs `ask(until, verdicts)` in a thread while the `with` block runs. The block starts after the first verdict.

    `until()` becomes true when the block ends. Raises what `ask` raises.
    """
    stop, verdicts = threading.Event(), Verdicts()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(ask, stop.is_set, verdicts)
        while not (verdicts.sent or future.done()):
            time.sleep(0.01)
        try:
            yield verdicts
        finally:
            stop.set()
        future.result()


@dataclass(frozen=True)
class Question:
    """A request and its expected answer.

    `body`: JSON and binary tensors. `header_length`: bytes of the JSON. `is_right`: compares the answer's outputs, by
    name.
    """

    body: bytes
    header_length: int
    is_right: Callable[[Mapping[str, NDArray[Any]]], bool]


def make_question(
    inputs: Mapping[str, NDArray[Any]],
    outputs: Sequence[str],
    is_right: Callable[[Mapping[str, NDArray[Any]]], bool],
) -> Question:
    """A question with `inputs` that asks for the tensors `outputs`, in Triton's binary form."""
    from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput
    from tritonclient.utils import np_to_triton_dtype

    tensors = [InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype)) for name, value in inputs.items()]
    for tensor, value in zip(tensors, inputs.values(), strict=True):
        tensor.set_data_from_numpy(value)
    requested = [InferRequestedOutput(name) for name in outputs]
    body, header_length = InferenceServerClient.generate_request_body(tensors, outputs=requested)
    return Question(body, header_length, is_right)


def image_question(images: NDArray[np.uint8], logits: NDArray[np.float32]) -> Question:
    """A question with images uint8 (B, 1, 28, 28), whose answer is `logits`, float32 (B, classes)."""
    return make_question({"image": images}, ["logits"], lambda outputs: is_close(outputs["logits"], logits))


def is_close(answer: NDArray[np.float32], expected: NDArray[np.float32], tolerance: float = TOLERANCE) -> bool:
    return answer.shape == expected.shape and bool(np.abs(answer - expected).max(initial=0.0) <= tolerance)


@dataclass(frozen=True)
class Asker:
    """Sends the questions in turn. `url`: host:port of the server."""

    url: str
    model: str
    questions: Sequence[Question]

    def closed_loop(
        self, in_flight: int, until: Callable[[], bool], verdicts: Verdicts | None = None, pause_s: float = 0
    ) -> Verdicts:
        """Sends `in_flight` requests at once until `until()` is true. Adds to `verdicts`, if given, and returns them.

        After an answer a client pauses for `pause_s`, after a failure for RETRY_S.
        """
        verdicts = verdicts or Verdicts()

        async def work(ask: Callable[[], Awaitable[bool]]) -> None:
            async def client() -> None:
                while not until():
                    is_answered = await ask()
                    await asyncio.sleep(pause_s if is_answered else RETRY_S)

            await asyncio.gather(*(client() for _ in range(in_flight)))

        asyncio.run(self._session(work, verdicts))
        return verdicts

    def capacity(self, in_flight: int) -> float:
        """Right answers a second."""
        ends = time.monotonic() + CAPACITY_S
        return len(self.closed_loop(in_flight, lambda: time.monotonic() > ends).right) / CAPACITY_S

    def open_loop(self, rate: float, seconds: float) -> Verdicts:
        """Sends `rate` requests a second, whether answers come or not; at most MOST requests."""
        verdicts = Verdicts()
        gc.collect()
        gc.freeze()  # else a collection of all older objects would stop the sender for a tenth of a second

        async def work(ask: Callable[[], Awaitable[bool]]) -> None:
            started, tasks = time.perf_counter(), set[asyncio.Task[bool]]()
            sent = 0
            while (elapsed := time.perf_counter() - started) < seconds and sent < MOST:
                while sent < min(elapsed * rate, MOST):
                    verdicts.late.append(elapsed - sent / rate)
                    tasks.add(asyncio.ensure_future(ask()))
                    sent += 1
                await asyncio.sleep(0.002)
            await asyncio.gather(*tasks)

        asyncio.run(self._session(work, verdicts))
        return verdicts

    async def _session(
        self, work: Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]], verdicts: Verdicts
    ) -> None:
        """Runs `work(ask)`. `ask()` sends the next question, adds a verdict, and returns whether the status was 200."""
        import aiohttp

        questions = cycle(self.questions)
        url = f"http://{self.url}/v2/models/{self.model}/infer"
        timeout, connector = aiohttp.ClientTimeout(ANSWER_S), aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

            async def ask() -> bool:
                question, started = next(questions), time.perf_counter()
                try:
                    headers = {LENGTH: str(question.header_length)}
                    async with session.post(url, data=question.body, headers=headers) as answer:
                        content = await answer.read()
                except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
                    verdicts.failed += 1
                    return False
                seconds = time.perf_counter() - started
                if answer.status == 503:
                    verdicts.refused.append(seconds)
                elif answer.status != 200:
                    verdicts.failed += 1
                elif question.is_right(parse_outputs(content, int(answer.headers[LENGTH]))):
                    verdicts.right.append((started, seconds))
                else:
                    verdicts.wrong += 1
                return answer.status == 200

            await work(ask)
