import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from web_http import ask, listening

from clients.web import channels
from clients.web.channels import CONNECTIONS, CONNECTIONS_OF_ADDRESS

NOBODY = "127.0.0.1:1"
SLOW = 1500  # more than waitress alone would accept
WITHIN_S = 5.0  # five times what a person may wait
BEGUN = b"POST /api/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


@pytest.fixture
def page() -> Iterator[tuple[str, int]]:
    with listening(NOBODY) as address:
        host, port = address.split(":")
        yield host, int(port)


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(2 * SLOW, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def slow_connections(page: tuple[str, int], count: int, source: str, sent: bytes) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(page, 30, (source, 0)))
            connection.sendall(sent)
            opened.append(connection)
        yield opened


def still_open(connections: list[socket.socket]) -> int:
    count = 0
    for connection in connections:
        connection.setblocking(False)
        try:
            count += connection.recv(1) != b""
        except BlockingIOError:
            count += 1
        except ConnectionError:
            continue
    return count


def seconds_to_get_in(page: tuple[str, int]) -> float:
    start_s = time.monotonic()
    assert ask("{}:{}".format(*page), "GET", "/")[0] == 200
    return time.monotonic() - start_s


def test_the_slow_ones_keep_nobody_out(page: tuple[str, int], many_files: None) -> None:
    for source in ("127.0.0.2", "127.0.0.1"):  # the person's own address too
        with slow_connections(page, SLOW, source, BEGUN) as connections:
            taken_s = [seconds_to_get_in(page) for _ in range(5)]
            print(f"{SLOW} slow connections from {source}: {max(taken_s):.3f} s at most until the page is there")
            assert max(taken_s) < WITHIN_S
            assert still_open(connections) <= CONNECTIONS_OF_ADDRESS


def test_all_addresses_together_are_bounded(page: tuple[str, int]) -> None:
    with ExitStack() as stack:
        every = []
        for number in range(6):
            slow = slow_connections(page, CONNECTIONS_OF_ADDRESS, f"127.0.0.{10 + number}", BEGUN)
            every.append(stack.enter_context(slow))
        assert seconds_to_get_in(page) < WITHIN_S
        open_now = [still_open(connections) for connections in every]
        assert sum(open_now) <= CONNECTIONS
        assert min(open_now) > 0


@pytest.mark.parametrize(
    "sent",
    [b"", BEGUN, BEGUN + b"Content-Length: 1000\r\n\r\n", BEGUN + b"Transfer-Encoding: chunked\r\n\r\n5\r\n"],
    ids=["nothing", "headers", "body", "chunk"],
)
def test_a_request_that_does_not_end_is_closed(
    page: tuple[str, int], sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "HEADER_S", 0.5)
    monkeypatch.setattr(channels, "BODY_S", 0.5)
    with socket.create_connection(page, 30) as connection:
        connection.sendall(sent)
        start_s = time.monotonic()
        for _ in range(600):
            try:
                connection.sendall(b"x" if sent else b"")
                connection.settimeout(0.05)
                if connection.recv(4096) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            pytest.fail("the server has not closed the connection")
    assert time.monotonic() - start_s > 0.3


def test_a_connection_may_ask_again_after_a_while(page: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "HEADER_S", 0.5)
    with socket.create_connection(page, 30) as connection:
        for _ in range(2):
            connection.sendall(b"GET /static/icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
            time.sleep(1.5)  # longer than a request may take
            connection.recv(65536)
