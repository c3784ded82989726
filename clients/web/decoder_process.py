"""Decodes strangers' pictures in a separate process, whose memory is bounded and which can be killed.

In: a picture's bytes and the model's description. Out: a `Prepared`, or InvalidImage.

Measured with twelve PNGs of 9,400 x 9,400 pixels from one address: if the page's process decodes them, another user
waits 40 s and 1.9 GB stay in use; if this process refuses them, 0.07 s and 0.13 GB.

Request: a line of JSON, then the picture. Answer: a line of JSON, then the model's input. Nothing is unpickled.
"""

from __future__ import annotations

import io
import json
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from clients.errors import InvalidImage
from clients.images.decode import read_image
from clients.images.photo_checks import Looks
from clients.images.prepare import Preparation, Prepared
from common.framing import Framing

PIXELS = 25_000_000  # decoded at once: 100 MB in colour
MEMORY_BYTES = 350_000_000  # of the process, besides its libraries
LEFT_BYTES = 150_000_000  # a process that is larger after a picture ends
LIMIT_S = 5.0  # for a picture
LINE_BYTES = 65_536


class Decoder:
    """Prepares pictures for any thread. Its process starts with the first picture and takes one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self, content: bytes, model: Preparation, turn: Callable[[], AbstractContextManager[None]]) -> Prepared:
        """Prepares the image file `content` for `model`, inside the context `turn()`, once the process is free.

        Raises InvalidImage, also for a picture that takes too long or too much memory.
        """
        with self._lock:
            process = self._running()
            with turn():
                return self._exchange(process, content, model)

    def close(self) -> None:
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        command = [sys.executable, "-P", "-c", "from clients.web.decoder_process import serve; serve()"]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # its buffers per thread count as memory
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
        if not _pipes(self._process)[1].readline(LINE_BYTES):
            self._end()
            raise RuntimeError("expected the process that decodes pictures to start, found its end")
        return self._process

    def _exchange(self, process: subprocess.Popen[bytes], content: bytes, model: Preparation) -> Prepared:
        started_s = time.monotonic()
        ending = threading.Timer(LIMIT_S, process.kill)
        ending.start()
        target, source = _pipes(process)
        try:
            about: dict[str, object] = {"shape": model.image_shape, "preprocessing": model.preprocessing}
            about |= {"looks": asdict(model.looks) if model.looks else None}
            about |= {"framing": asdict(model.framing) if model.framing else None}
            _send(target, {"bytes": len(content), **about}, content)
            answer = json.loads(source.readline(LINE_BYTES))
            pixels = b"" if "error" in answer else _read(source, math.prod(model.image_shape))
        except (OSError, ValueError) as error:
            self._end()
            late = time.monotonic() - started_s >= LIMIT_S
            found = f"no answer within {LIMIT_S:g} s" if late else "an image that ended its reader"
            raise InvalidImage(f"expected a picture that is quickly read, found {found}") from error
        finally:
            ending.cancel()
        if answer["ends"]:
            self._end()
        if "error" in answer:
            raise InvalidImage(str(answer["error"]))
        images = np.frombuffer(pixels, np.uint8).reshape(1, *model.image_shape)
        return Prepared(images, int(answer["shapes"]), tuple(answer["notes"]), bool(answer["suits"]))

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in _pipes(process):
                with suppress(OSError):  # closing writes what was not yet written
                    pipe.close()
            process.wait()


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """The process's input and output."""
    if process.stdin is None or process.stdout is None:
        raise OSError("expected a process with pipes, found one without")
    return process.stdin, process.stdout


def _send(stream: IO[bytes], about: dict[str, object], content: bytes = b"") -> None:
    stream.write(json.dumps(about).encode() + b"\n" + content)
    stream.flush()


def _read(stream: IO[bytes], size: int) -> bytes:
    content = stream.read(size)
    if len(content) < size:
        raise OSError(f"expected {size} bytes, found {len(content)}")
    return content


def serve() -> None:
    """Runs in the process: answers requests until its input ends or it has become too large."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the page's server, which then closes the input
    warnings.filterwarnings("ignore", module="PIL")  # serious faults are errors
    _bound_memory()
    source, target = sys.stdin.buffer, sys.stdout.buffer
    _send(target, {})
    while line := source.readline(LINE_BYTES):
        request = json.loads(line)
        answer, pixels = _prepared(_read(source, request["bytes"]), request)
        ends = _resident_bytes() > LEFT_BYTES
        _send(target, {**answer, "ends": ends}, pixels)
        if ends:
            return


def _prepared(content: bytes, request: dict[str, Any]) -> tuple[dict[str, object], bytes]:
    looks = Looks(**request["looks"]) if request["looks"] else None
    try:
        framing = Framing.of(request["framing"]) if request["framing"] else None
        model = Preparation(tuple(request["shape"]), request["preprocessing"], looks, framing)
        picture = read_image(io.BytesIO(content), most_pixels=PIXELS, full_size=model.reads_full_size)
        prepared = model.prepare(picture)
    except InvalidImage as error:
        return {"error": str(error)}, b""
    except MemoryError:
        return {"error": f"expected a picture that {MEMORY_BYTES // 10**6} MB of memory hold, found a larger one"}, b""
    return {"shapes": prepared.shapes, "notes": prepared.notes, "suits": prepared.suits}, prepared.images.tobytes()


def _bound_memory() -> None:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    most = int(fields["VmData"].split()[0]) * 1024 + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
