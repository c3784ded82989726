"""Asks every served version a stored question and compares the answer.

In: a server's HTTP address and, at the machine of the files, its repositories. Out: one JSON object per probe and an
exit code. clients/samples.py finds the question. A version that refuses or delays the sample passes as `busy` if it
answers other requests meanwhile.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import click

from clients.samples import judged, outputs, question, request
from common.headers import parse_headers
from common.repository import model_dir

TIMEOUT_S = 0.8  # leaves room for the start of Python within a second
ASK_SHARE = 0.75  # of it for inferences, the rest to look for progress
PROGRESS_S = 0.02
MOST_VERSIONS_AT_ONCE = 8

State = Literal["right", "not compared", "busy", "wrong", "failed"]
PASSING: tuple[State, ...] = ("right", "not compared", "busy")

# What an answer of another form raises.
FOREIGN = (LookupError, TypeError, ValueError, AttributeError, OverflowError, zlib.error)


class ProbeFailed(Exception):
    """`passing`: the server may just be busy."""

    def __init__(self, message: str, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


@dataclass(frozen=True)
class VersionProbe:
    """`max_abs_error` is None without a stored answer and for answers with NaN or infinity."""

    model: str
    version: str
    state: State
    ms: float
    max_abs_error: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Probe:
    url: str
    ok: bool
    seconds: float
    versions: Sequence[VersionProbe] = ()
    reason: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class Server:
    """HTTP requests before `deadline`, in seconds of time.monotonic()."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    deadline: float = 0.0

    def ask(self, path: str, body: bytes | None = None, header_bytes: int = 0, until: float = 0.0) -> tuple[bytes, int]:
        """The body and its JSON part's length; raises ProbeFailed."""
        left_s = (until or self.deadline) - time.monotonic()
        if left_s <= 0:
            raise ProbeFailed("no answer in time", passing=True)
        headers = {"Connection": "close", **self.headers}
        headers |= {"Inference-Header-Content-Length": str(header_bytes)} if header_bytes else {}
        end_s = time.monotonic() + left_s
        try:
            with closing(HTTPConnection(self.url, timeout=left_s)) as connection:
                connection.connect()
                with _cut_off(connection.sock, left_s):
                    connection.request("GET" if body is None else "POST", f"/{path}", body, headers)
                    answer = connection.getresponse()
                    if answer.status >= 300:
                        raise ProbeFailed(_refusal(answer), passing=answer.status == 503)
                    content = answer.read()
            if time.monotonic() > end_s:
                raise TimeoutError("timed out")
            length = int(answer.headers.get("Inference-Header-Content-Length") or len(content))
        except (OSError, ValueError, HTTPException) as error:
            late = isinstance(error, TimeoutError) or time.monotonic() > end_s
            words = "timed out" if late else str(error) if isinstance(error, OSError | ValueError) else repr(error)
            raise ProbeFailed(f"no answer: {words}", passing=late) from error
        return content, length

    def json(self, path: str, body: bytes | None = None) -> Any:
        try:
            return json.loads(self.ask(path, body)[0])
        except ValueError as error:
            raise ProbeFailed(f"{path}: expected JSON, found {error}") from error


def _refusal(answer: HTTPResponse) -> str:
    words = ""
    with suppress(OSError, HTTPException):
        words = " ".join(answer.read(500).decode(errors="replace").split())
    return f"HTTP {answer.status} {words}"


@contextmanager
def _cut_off(connected: socket.socket, seconds: float) -> Iterator[None]:
    """Ends the connection then: its own timeout begins anew with each byte."""

    def shut() -> None:
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def probe_server(
    url: str,
    models: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    repositories: Sequence[Path] = (),
) -> Probe:
    """Asks `models`, by default all; `repositories`: where their samples lie."""
    started = time.monotonic()
    server = Server(url, headers or {}, started + timeout_s)
    try:
        successes = _successes(server)
        served = _chosen(successes, models)
        with ThreadPoolExecutor(MOST_VERSIONS_AT_ONCE) as pool:
            until = started + ASK_SHARE * timeout_s
            verdicts = list(pool.map(lambda each: _verdict(server, each, until, successes, repositories), served))
    except ProbeFailed as failure:
        return Probe(url, False, round(time.monotonic() - started, 4), (), str(failure))
    ok = all(verdict.state in PASSING for verdict in verdicts)
    return Probe(url, ok, round(time.monotonic() - started, 4), verdicts)


def _chosen(ready: Collection[tuple[str, str]], models: Sequence[str]) -> list[tuple[str, str]]:
    """(model, version) pairs."""
    names = {name for name, _ in ready}
    if missing := sorted(set(models) - names):
        raise ProbeFailed(f"model {missing[0]!r} is not served")
    if not ready:
        raise ProbeFailed("no model is served")
    return [(name, version) for name, version in ready if not models or name in models]


def _successes(server: Server) -> dict[tuple[str, str], int]:
    """Of every ready version: Triton has statistics of no others, and asks no key for them."""
    answer = server.json("v2/models/stats")
    try:
        stats = answer["model_stats"]
        return {(each["name"], each["version"]): int(each["inference_stats"]["success"]["count"]) for each in stats}
    except FOREIGN as error:
        raise ProbeFailed(f"expected Triton's statistics, found {str(answer)[:100]!r}") from error


def _verdict(
    server: Server,
    which: tuple[str, str],
    until: float,
    before: Mapping[tuple[str, str], int],
    repositories: Sequence[Path],
) -> VersionProbe:
    started = time.monotonic()
    state: State
    try:
        state, error, reason = _ask_sample(server, *which, until, repositories)
    except ProbeFailed as failure:
        error, reason = None, str(failure)
        state = "busy" if failure.passing and _progresses(server, which, before) else "failed"
    except FOREIGN as failure:
        state, error, reason = "failed", None, f"expected a classifier's answer, found {failure!r}"
    return VersionProbe(*which, state, round(1e3 * (time.monotonic() - started), 2), error, reason)


def _progresses(server: Server, which: tuple[str, str], before: Mapping[tuple[str, str], int]) -> bool:
    try:
        while _successes(server).get(which, 0) <= before.get(which, 0):
            time.sleep(PROGRESS_S)
    except ProbeFailed:
        return False
    return True


def _ask_sample(
    server: Server, model: str, version: str, until: float, repositories: Sequence[Path]
) -> tuple[State, float | None, str]:
    config = server.json(f"v2/models/{model}/versions/{version}/config")
    asked = question(config, version, model_dir(repositories, model))
    header, content = request(config, asked.inputs)
    answer, length = server.ask(f"v2/models/{model}/versions/{version}/infer", header + content, len(header), until)
    return judged(asked.expected, outputs(answer, length))


class Health:
    """The last verdict at `http://address/`: 200 while it passes and is at most `stale_s` old, else 503.

    Raises OSError for a taken address.
    """

    def __init__(self, address: str, stale_s: float) -> None:
        host, _, port = address.rpartition(":")
        self._stale_s, self._last = stale_s, (float("-inf"), False, "{}")
        health = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"  # the proxy keeps its connection
            timeout = 10.0

            def do_GET(self) -> None:
                status, body = health.answer()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        server = Server((host.strip("[]"), int(port)), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def heard(self, probe: Probe) -> None:
        self._last = (time.monotonic(), probe.ok, probe.to_json())

    def answer(self) -> tuple[int, bytes]:
        heard_s, ok, text = self._last
        return (200 if ok and time.monotonic() - heard_s <= self._stale_s else 503), text.encode()


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    host, _, port = (value or "").rpartition(":")
    if value is not None and not (host and port.isdecimal() and int(port) <= 65535):
        raise click.BadParameter(f"expected HOST:PORT, found {value!r}")
    return value


def _health(address: str | None, every_s: float | None, timeout_s: float) -> Health | None:
    if address is None:
        return None
    if every_s is None:
        raise click.UsageError("--listen needs --every")
    try:
        return Health(address, 2 * (every_s + timeout_s))
    except OSError as error:
        raise click.ClickException(f"--listen {address}: {error.strerror}") from error


@click.command()
@click.option("--url", default="127.0.0.1:8000", show_default=True, help="HOST:PORT of HTTP.")
@click.option(
    "--model", "models", multiple=True, help="Ask only this model, which must be served; repeatable.  [default: all]"
)
@click.option(
    "--repository",
    "repositories",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Compare with the samples in this folder; repeatable.  [default: with those in config.pbtxt]",
)
@click.option("--timeout", type=click.FloatRange(0.05, 60), default=TIMEOUT_S, show_default=True, help="Seconds.")
@click.option("--header", multiple=True, metavar="NAME:VALUE", help="For a guarded server.  [default: none]")
@click.option(
    "--every",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    help="Repeat until interrupted, one line per probe.  [default: once]",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=_address,
    help="With --every: answer a proxy's health checks.  [default: none]",
)
def probe(
    models: tuple[str, ...],
    repositories: tuple[Path, ...],
    url: str,
    timeout: float,
    header: tuple[str, ...],
    every: float | None,
    listen: str | None,
) -> None:
    """Ask every served version its sample; print JSON; exit code 1 for a wrong answer or none."""
    if every is not None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # else a container's first process ignores it
    try:
        headers = parse_headers(header)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    health = _health(listen, every, timeout)
    while True:
        result = probe_server(url, models, headers, timeout, repositories)
        if health:
            health.heard(result)
        print(result.to_json(), flush=True)
        if every is None:
            sys.exit(0 if result.ok else 1)
        time.sleep(every)


if __name__ == "__main__":
    probe()
