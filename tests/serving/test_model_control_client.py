import time
from collections.abc import Iterator

import pytest
from raw_server import answering, reply

from serving.model_control_client import Control, ControlFailed

CUT_OFF = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n["
BROKEN = {
    "no HTTP": (b"garbage\r\n\r\n", "no Triton server at {} (garbage)"),
    "cut off": (CUT_OFF, "no Triton server at {} (IncompleteRead(1 bytes read, 9 more expected))"),
    "error cut off": (
        b"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
        "{}: HTTP status 400",
    ),
    "deep JSON": (reply(b"[" * 9999), "no Triton server at {} (maximum recursion depth exceeded"),
    "error of deep JSON": (reply(b"[" * 9999, "400 Bad Request"), "{}: HTTP status 400"),
    "another program": (reply(b"<html>", "404 Not Found"), "no Triton server at {} (HTTP status 404)"),
    "Triton's own": (reply(b'{"error": "no such model"}', "404 Not Found"), "{}: no such model"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_answer_is_a_failure(name: str) -> None:
    answer, said = BROKEN[name]
    with answering(lambda path: [answer]) as url, pytest.raises(ControlFailed) as failed:
        Control(url, {}).index()
    assert str(failed.value).partition(" while decoding")[0] == said.format(url)


def test_no_redirect_is_followed() -> None:
    asked: list[str] = []

    def answer(path: str) -> list[bytes]:
        asked.append(path)
        return [reply(b"", "302 Found", "Location: /elsewhere\r\n")]

    with answering(answer) as url, pytest.raises(ControlFailed, match="HTTP status 302"):
        Control(url, {"key": "secret"}).index()
    assert asked == ["/v2/repository/index"]


def test_a_load_whose_answer_is_cut_off_has_failed() -> None:
    with answering(lambda path: [CUT_OFF]) as url, pytest.raises(ControlFailed, match="no Triton server at"):
        Control(url, {}).load("linear", None, 5.0)


def test_an_answer_that_arrives_too_slowly_is_given_up() -> None:
    def answer(path: str) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n["
        for _ in range(500):
            time.sleep(0.01)
            yield b" "

    with answering(answer) as url, pytest.raises(ControlFailed, match=r"no Triton server at .* \(timed out\)"):
        Control(url, {}).index(0.1)


def test_a_connection_that_ends_without_an_answer_is_tried_once_more() -> None:
    answers = [[], [reply(b"null")], [], []]
    with answering(lambda path: answers.pop(0)) as url:
        Control(url, {}).load("linear", None, 5.0)
        with pytest.raises(ControlFailed, match="Remote end closed connection without response"):
            Control(url, {}).load("linear", None, 5.0)
    assert not answers
