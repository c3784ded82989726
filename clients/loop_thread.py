"""An event loop in a thread of its own, for programs that have none."""

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Loop(asyncio.SelectorEventLoop):
    """In a forked child it passes for closed, for closing it there would silence the sockets of the parent's."""

    def __init__(self) -> None:
        self._process = os.getpid()
        super().__init__()

    def is_closed(self) -> bool:
        return os.getpid() != self._process or super().is_closed()


class LoopThread:
    """Runs coroutines for any thread of the process that made it, until it is stopped."""

    def __init__(self, name: str) -> None:
        self._loop = _Loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name=name, daemon=True)
        self._stopped = False
        self._order = threading.Lock()  # what is submitted is either before the end or refused
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        """Start a coroutine; raises RuntimeError when the thread is stopped or belongs to the parent process."""
        if not self._loop.is_closed():  # asked first, for a forked child may find the lock taken for ever
            with self._order:
                if not self._stopped:
                    return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise RuntimeError("expected an open classifier of this process, found one that was closed or forked")

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns; when this thread is interrupted, the coroutine is cancelled."""
        return result_of(self.submit(coroutine))

    def stop(self, farewell: Callable[[], Awaitable[None]]) -> None:
        """Cancel all that runs, run `farewell` to its end, and end the thread; nothing when that has been done.

        Nothing in a forked child either, which has no such thread.
        """
        if self._loop.is_closed():
            return
        with self._order:
            if self._stopped:
                return
            self._stopped = True
            asyncio.run_coroutine_threadsafe(_end(farewell), self._loop)
        if threading.current_thread() is not self._thread:  # where the garbage collector may call from
            self._thread.join()


def result_of(future: "concurrent.futures.Future[T]") -> T:
    """Wait for a coroutine that was submitted; raises RuntimeError where the end of its thread cancelled it."""
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        raise RuntimeError("the classifier was closed while a request was under way") from None
    finally:
        future.cancel()  # does nothing unless waiting was interrupted


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _end(farewell: Callable[[], Awaitable[None]]) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    try:
        await farewell()
    finally:
        asyncio.get_running_loop().stop()
