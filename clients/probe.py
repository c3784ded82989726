"""Asks every served version a stored question and compares the answer.

In: a server's HTTP address. Out: one JSON object per probe and an exit code. The parameter `probe` in config.pbtxt
holds the sample and each version's logits, so a container needs only click. Without it a model gets zeros and must only
answer. A version that refuses or delays the sample passes as `busy` if it answers other requests meanwhile.
"""

from __future__ import annotations

import base64
import json
import signal
import socket
import struct
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
from math import isfinite, prod
from typing import Any, Literal

import click

from clients.options import parse_headers

TIMEOUT_S = 0.8  # leaves room for the start of Python within a second
ASK_SHARE = 0.75  # of it for inferences, the rest to look for progress
PROGRESS_S = 0.02
MOST_VERSIONS_AT_ONCE = 8
BYTES = {"BOOL": 1, "UINT8": 1, "INT8": 1, "UINT16": 2, "INT16": 2, "FP16": 2, "BF16": 2}
BYTES |= {"UINT32": 4, "INT32": 4, "FP32": 4, "UINT64": 8, "INT64": 8, "FP64": 8}
BYTES |= {"STRING": 4}  # the length of an empty string

State = Literal["right", "answers", "busy", "wrong", "failed"]
PASSING: tuple[State, ...] = ("right", "answers", "busy")

# What an answer of another form raises.
FOREIGN = (LookupError, TypeError, ValueError, AttributeError, OverflowError, zlib.error, struct.error)


class ProbeFailed(Exception):
    """`passing`: the server may just be busy."""

    def __init__(self, message: str, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


@dataclass(frozen=True)
class VersionProbe:
    """`max_abs_error` is None without stored logits and for answers with NaN or infinity."""

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
    url: str, models: Sequence[str] = (), headers: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
) -> Probe:
    """Asks `models`, by default all."""
    started = time.monotonic()
    server = Server(url, headers or {}, started + timeout_s)
    try:
        successes = _successes(server)
        served = _chosen(successes, models)
        with ThreadPoolExecutor(MOST_VERSIONS_AT_ONCE) as pool:
            until = started + ASK_SHARE * timeout_s
            verdicts = list(pool.map(lambda each: _verdict(server, each[0], each[1], until, successes), served))
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
    server: Server, model: str, version: str, until: float, before: Mapping[tuple[str, str], int]
) -> VersionProbe:
    started = time.monotonic()
    state: State
    try:
        state, error = _ask_sample(server, model, version, until)
        found = "NaN or infinity" if error is None else f"an error of {error:g}"
        reason = "" if state != "wrong" else f"expected the stored logits, found {found}"
    except ProbeFailed as failure:
        error, reason = None, str(failure)
        state = "busy" if failure.passing and _progresses(server, (model, version), before) else "failed"
    except FOREIGN as failure:
        state, error, reason = "failed", None, f"expected a classifier's answer, found {failure!r}"
    return VersionProbe(model, version, state, round(1e3 * (time.monotonic() - started), 2), error, reason)


def _progresses(server: Server, which: tuple[str, str], before: Mapping[tuple[str, str], int]) -> bool:
    try:
        while _successes(server).get(which, 0) <= before.get(which, 0):
            time.sleep(PROGRESS_S)
    except ProbeFailed:
        return False
    return True


def _ask_sample(server: Server, model: str, version: str, until: float) -> tuple[State, float | None]:
    config = server.json(f"v2/models/{model}/versions/{version}/config")
    stored = json.loads(config.get("parameters", {}).get("probe", {}).get("string_value", "{}"))
    expected = stored.get("answers", {}).get(version)
    image = zlib.decompress(base64.b64decode(stored["image"])) if expected else None
    header, content = _request(config, image)
    answer, length = server.ask(f"v2/models/{model}/versions/{version}/infer", header + content, len(header), until)
    output = json.loads(answer[:length])["outputs"][0]
    if expected is None:
        return "answers", None
    count = prod(output["shape"])
    logits = struct.unpack(f"<{count}f", answer[length : length + 4 * count])
    wanted = expected["logits"]
    if len(logits) != len(wanted):
        raise ValueError(f"{len(logits)} logits for {len(wanted)} classes")
    errors = [abs(have - want) for have, want in zip(logits, wanted, strict=True)]
    if not all(map(isfinite, errors)):  # max() would skip NaN
        return "wrong", None
    error = max(errors)
    same_class = logits.index(max(logits)) == wanted.index(max(wanted))
    tolerance = expected["tolerance"]  # None below float32: processors differ there, so only the class counts
    right = same_class and (tolerance is None or error <= tolerance)
    return "right" if right else "wrong", error


def _request(config: Mapping[str, Any], image: bytes | None) -> tuple[bytes, bytes]:
    """JSON and binary part for one row: `image`, else zeros."""
    inputs, contents = [], []
    for each in config["input"]:
        sizes = [max(1, int(size)) for size in each["dims"]]
        shape = [1, *sizes] if config.get("max_batch_size", 0) > 0 else sizes
        kind = each["data_type"].removeprefix("TYPE_")
        content = image if image is not None else bytes(prod(shape) * BYTES[kind])
        binary = {"binary_data_size": len(content)}
        datatype = "BYTES" if kind == "STRING" else kind
        inputs.append({"name": each["name"], "shape": shape, "datatype": datatype, "parameters": binary})
        contents.append(content)
    header = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    return json.dumps(header).encode(), b"".join(contents)


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
    url: str,
    timeout: float,
    header: tuple[str, ...],
    every: float | None,
    listen: str | None,
) -> None:
    """Ask every served version a stored image; print JSON; exit code 1 unless all answer right."""
    if every is not None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # else a container's first process ignores it
    try:
        headers = parse_headers(header)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    health = _health(listen, every, timeout)
    while True:
        result = probe_server(url, models, headers, timeout)
        if health:
            health.heard(result)
        print(result.to_json(), flush=True)
        if every is None:
            sys.exit(0 if result.ok else 1)
        time.sleep(every)


if __name__ == "__main__":
    probe()
