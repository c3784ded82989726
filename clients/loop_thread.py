"""Runs coroutines for callers without an event loop, on a loop in a separate thread."""

import asyncio
import concurrent.futures
import inspect
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# CPython checks for an interrupt before a wait, and an interrupt during the wait ends it. An interrupt between the two,
# or an interrupt that the kernel gives to another thread, is seen only when the wait ends.
_LONGEST_WAIT_S = 0.2


class _Loop(asyncio.SelectorEventLoop):
    """Reports itself as closed in a forked child, where closing would disturb the parent's sockets."""

    def __init__(self) -> None:
        self._process = os.getpid()
        super().__init__()

    def is_closed(self) -> bool:
        return os.getpid() != self._process or super().is_closed()


class LoopThread:
    """An event loop in a thread named `name`. Any thread may submit coroutines."""

    def __init__(self, name: str) -> None:
        self._loop = _Loop()
        self._thread = threading.Thread(target=_run_loop, args=(self._loop,), name=name, daemon=True)
        self._stopped = False
        self._lock = threading.Lock()
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Starts the coroutine. Raises RuntimeError after `stop` and in a forked child."""
        try:
            if not self._loop.is_closed():  # before the lock, which a forked child may inherit while it is held
                with self._lock:
                    if not self._stopped:
                        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except BaseException:  # an interrupt: Python would warn of a coroutine that never started
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()
            raise
        coroutine.close()
        raise RuntimeError("expected an open classifier of this process, found a closed or forked one")

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Waits for the coroutine's result. KeyboardInterrupt cancels the coroutine."""
        return result_of(self.submit(coroutine))

    def stop(self, clean_up: Callable[[], Awaitable[None]]) -> None:
        """Cancels all coroutines, awaits `clean_up()` and ends the thread."""
        if self._loop.is_closed():
            return
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            asyncio.run_coroutine_threadsafe(_shut_down(clean_up), self._loop)
        if threading.current_thread() is not self._thread:  # the garbage collector may call here
            self._thread.join()


def result_of(future: "concurrent.futures.Future[T]") -> T:
    """Waits for the result. KeyboardInterrupt cancels the future."""
    try:
        while True:
            try:
                return future.result(_LONGEST_WAIT_S)
            except TimeoutError:
                if future.done():  # the coroutine raised the TimeoutError
                    return future.result()
    except concurrent.futures.CancelledError:
        raise RuntimeError("the classifier was closed while a request was under way") from None
    finally:
        future.cancel()  # has an effect only after an interrupt


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _shut_down(clean_up: Callable[[], Awaitable[None]]) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    try:
        await clean_up()
    finally:
        asyncio.get_running_loop().stop()
