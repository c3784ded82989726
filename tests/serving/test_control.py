import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from serving.control import Control, ControlFailed

BROKEN = {
    "no HTTP": b"garbage\r\n\r\n",
    "cut off": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n[",
    "error cut off": b"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
}


@contextmanager
def answering(content: bytes) -> Iterator[Control]:
    """To one request."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection, suppress(ConnectionResetError):
                connection.recv(1 << 16)
                connection.sendall(content)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):  # else unread bytes reset the connection
                    pass

        thread = threading.Thread(target=answer)
        thread.start()
        yield Control(f"127.0.0.1:{listening.getsockname()[1]}", {})
        thread.join()


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_answer_is_a_failure(name: str) -> None:
    with answering(BROKEN[name]) as control, pytest.raises(ControlFailed):
        control.index()


def test_a_load_whose_answer_is_cut_off_has_failed() -> None:
    with answering(BROKEN["cut off"]) as control, pytest.raises(ControlFailed, match="no Triton server at"):
        control.load("linear", None, 5.0)
