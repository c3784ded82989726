"""What goes on in threads while a test runs."""

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def meanwhile(work: Callable[[threading.Event], object], count: int = 1) -> Iterator[None]:
    """`work` in so many threads; the event that it gets is set at the end."""
    end = threading.Event()
    threads = [threading.Thread(target=work, args=(end,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


@contextmanager
def running(server: socketserver.TCPServer) -> Iterator[int]:
    """A server of the standard library; yields its port."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
