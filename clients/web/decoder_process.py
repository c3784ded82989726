"""Decodes strangers' pictures in a separate process. Its memory is limited, and it can be killed.

In: a picture's bytes and the model's description. Out: a `Prepared`, or InvalidImage.

Measured with twelve PNGs of 9,400 x 9,400 pixels from a single address: if the page's process decodes them, another
user waits 40 s and 1.9 GB stay in use. If this process refuses them, it is 0.07 s and 0.13 GB.

The page's process sends a line of JSON and the picture, this process a line of JSON and the model's input. Nothing is
unpickled.
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
from clients.images.prepare import Preparation, Prepared
from clients.images.training_photo_match import Looks
from common.preprocessing_settings import Framing

MOST_PIXELS = 25_000_000  # of a decoded picture: 100 MB in colour
MEMORY_BYTES = 350_000_000  # limit of the process, without its libraries
RESIDENT_BYTES = 150_000_000  # a process that is larger after a picture ends
TIMEOUT_S = 5.0  # for a picture
LINE_BYTES = 65_536  # most bytes of a line of JSON


class Decoder:
    """Prepares pictures for any thread. Its process starts with the first picture and prepares a picture at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self, content: bytes, model: Preparation, turn: Callable[[], AbstractContextManager[None]]) -> Prepared:
        """Waits until the process is free, and prepares the image file `content` inside the context `turn()`.

        Raises InvalidImage, also for a picture that takes too long or too much memory.
        """
        with self._lock:
            process = self._running_process()
            with turn():
                return self._exchange(process, content, model)

    def close(self) -> None:
        """Waits for the current picture and ends the process."""
        with self._lock:
            self._end()

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        command = [sys.executable, "-P", "-c", "from clients.web.decoder_process import serve; serve()"]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # its buffers for further threads count as memory
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
        if not _pipes(self._process)[1].readline(LINE_BYTES):
            self._end()
            raise RuntimeError("expected the process that decodes pictures to start, found its end")
        return self._process

    def _exchange(self, process: subprocess.Popen[bytes], content: bytes, model: Preparation) -> Prepared:
        started_s = time.monotonic()
        killer = threading.Timer(TIMEOUT_S, process.kill)
        killer.start()
        target, source = _pipes(process)
        try:
            request: dict[str, object] = {"bytes": len(content)}
            request |= {"shape": model.image_shape, "preprocessing": model.preprocessing}
            request |= {"looks": asdict(model.looks) if model.looks else None}
            request |= {"framing": asdict(model.framing) if model.framing else None}
            _send(target, request, content)
            answer = json.loads(source.readline(LINE_BYTES))
            pixels = b"" if "error" in answer else _read(source, math.prod(model.image_shape))
        except (OSError, ValueError) as error:
            self._end()
            late = time.monotonic() - started_s >= TIMEOUT_S
            outcome = f"no answer within {TIMEOUT_S:g} s" if late else "an image that ended its reader"
            raise InvalidImage(f"expected a picture that is quickly read, found {outcome}") from error
        finally:
            killer.cancel()
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
                with suppress(OSError):  # closing writes the rest of the buffer
                    pipe.close()
            process.wait()


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    """The process's input and output."""
    if process.stdin is None or process.stdout is None:
        raise OSError("expected a process with pipes, found one without")
    return process.stdin, process.stdout


def _send(stream: IO[bytes], message: dict[str, object], content: bytes = b"") -> None:
    """Writes a line of JSON and the content."""
    stream.write(json.dumps(message).encode() + b"\n" + content)
    stream.flush()


def _read(stream: IO[bytes], size: int) -> bytes:
    """Raises OSError for fewer than `size` bytes."""
    content = stream.read(size)
    if len(content) < size:
        raise OSError(f"expected {size} bytes, found {len(content)}")
    return content


def serve() -> None:
    """Runs in the process: answers requests until its input ends or the process has become too large."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the page's server closes the input
    warnings.filterwarnings("ignore", module="PIL")  # serious faults are errors
    _limit_memory()
    source, target = sys.stdin.buffer, sys.stdout.buffer
    _send(target, {})
    while line := source.readline(LINE_BYTES):
        request = json.loads(line)
        answer, pixels = _prepare(_read(source, request["bytes"]), request)
        ends = _resident_bytes() > RESIDENT_BYTES
        _send(target, {**answer, "ends": ends}, pixels)
        if ends:
            return


def _prepare(content: bytes, request: dict[str, Any]) -> tuple[dict[str, object], bytes]:
    """The answer as JSON, with `error` for an invalid picture; the model's input as bytes."""
    looks = Looks(**request["looks"]) if request["looks"] else None
    try:
        framing = Framing.of(request["framing"]) if request["framing"] else None
        model = Preparation(tuple(request["shape"]), request["preprocessing"], looks, framing)
        notes: list[str] = []
        picture = read_image(
            io.BytesIO(content), notes.append, most_pixels=MOST_PIXELS, full_size=model.reads_full_size
        )
        prepared = model.prepare(picture)
    except InvalidImage as error:
        return {"error": str(error)}, b""
    except MemoryError:
        return {"error": f"expected a picture that {MEMORY_BYTES // 10**6} MB of memory hold, found a larger one"}, b""
    return {
        "shapes": prepared.shapes,
        "notes": [*notes, *prepared.notes],
        "suits": prepared.suits,
    }, prepared.images.tobytes()


def _limit_memory() -> None:
    """Lets the process take MEMORY_BYTES more than its libraries take now."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    limit = int(fields["VmData"].split()[0]) * 1024 + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
