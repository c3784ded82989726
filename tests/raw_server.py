"""A server that answers any request with given bytes."""

import socketserver
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from background import running


@contextmanager
def answering(answer: Callable[[str], Iterable[bytes]]) -> Iterator[str]:
    """HOST:PORT. `answer` gets a request's path; its pieces are sent, then the connection ends."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):  # the client went away
                asked, size = self.rfile.readline(), 0
                if not asked:
                    return  # the client went away before it asked
                while line := self.rfile.readline().strip():
                    if line.lower().startswith(b"content-length:"):
                        size = int(line.split()[1])
                self.rfile.read(size)
                for piece in answer(asked.split()[1].decode()):
                    self.wfile.write(piece)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with running(Server(("127.0.0.1", 0), Handler)) as port:
        yield f"127.0.0.1:{port}"


def reply(body: bytes, status: str = "200 OK", header: str = "", length: int | None = None) -> bytes:
    """`header`: more header lines, each with its end."""
    return f"HTTP/1.1 {status}\r\nContent-Length: {length or len(body)}\r\n{header}\r\n".encode() + body
