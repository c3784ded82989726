"""Hostile pictures cost their sender, not the page: refused by size, time and memory, and nobody else waits."""

import http.client
import io
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from web_http import DIGIT, PNG, listening
from web_parts import Triton

from clients.errors import InvalidImage
from clients.images.decode import read_image
from clients.images.prepare import Preparation
from clients.images.training_photo_match import Looks
from clients.web import decoder_process
from clients.web.decoder_process import Decoder
from clients.web.guards import RateLimit

SHAPE = (1, 28, 28)
MODEL = Preparation(SHAPE, "ink", None, None)


@pytest.fixture
def decoder() -> Iterator[Decoder]:
    with closing(Decoder()) as opened:
        yield opened


def picture(side: int, form: str, mode: str = "RGB", **options: object) -> bytes:
    image = Image.new(mode, (side, side), "white")
    image.paste("black", (side // 3, side // 4, side // 2, 3 * side // 4))
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def refusal(decoder: Decoder, content: bytes) -> str:
    with pytest.raises(InvalidImage) as raised:
        decoder.prepare(content, MODEL, nullcontext)
    return str(raised.value)


def resident_mb(decoder: Decoder) -> float:
    assert decoder._process is not None
    pages = int(Path(f"/proc/{decoder._process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.parametrize(
    ("model", "suits", "notes"),
    [(MODEL, True, 0), (Preparation((3, 32, 32), "photo", Looks("dark", 0.9), None), False, 1)],
    ids=["drawings", "photos"],
)
def test_the_process_prepares_as_the_library(decoder: Decoder, model: Preparation, suits: bool, notes: int) -> None:
    expected = model.prepare(read_image(io.BytesIO(DIGIT)))
    for _ in range(2):
        found = decoder.prepare(DIGIT, model, nullcontext)
        np.testing.assert_array_equal(found.images, expected.images)
        assert (found.shapes, found.notes, found.suits) == (expected.shapes, expected.notes, suits)
        assert len(found.notes) == notes


def test_only_the_first_frame_is_read_and_that_is_said(decoder: Decoder) -> None:
    moving = picture(40, "GIF", save_all=True, append_images=[Image.new("RGB", (40, 40))])
    notes = decoder.prepare(moving, MODEL, nullcontext).notes
    assert notes == ("several pages or frames; the first is read",)


def test_too_many_pixels_are_refused_before_they_are_decoded(decoder: Decoder) -> None:
    decoder.prepare(DIGIT, MODEL, nullcontext)
    before = resident_mb(decoder)
    for form, options in (("PNG", {"mode": "L", "compress_level": 1}), ("JPEG", {"progressive": True})):
        assert "at most 25 megapixels, found 9400x9400" in refusal(decoder, picture(9400, form, **options))
    assert resident_mb(decoder) < before + 50, "one 9400x9400 decoded takes 88 MB"


def test_a_jpeg_that_is_decoded_small_may_be_larger(decoder: Decoder) -> None:
    images = decoder.prepare(picture(9000, "JPEG"), MODEL, nullcontext).images
    assert images.max() > 200
    assert resident_mb(decoder) < 150


@pytest.mark.slow
def test_more_memory_than_the_process_may_take_is_refused(decoder: Decoder) -> None:
    assert "350 MB of memory hold" in refusal(decoder, picture(5000, "WEBP", method=0))
    assert decoder.prepare(DIGIT, MODEL, nullcontext).images.shape == (1, *SHAPE)


def test_a_slow_picture_ends_its_reader_and_the_next_is_read(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder.prepare(DIGIT, MODEL, nullcontext)
    with monkeypatch.context() as patch:
        patch.setattr(decoder_process, "TIMEOUT_S", 0.02)
        assert "found no answer within 0.02 s" in refusal(decoder, picture(4900, "PNG"))
    assert decoder.prepare(DIGIT, MODEL, nullcontext).images.shape == (1, *SHAPE)


def test_a_picture_that_kills_its_reader_is_refused(decoder: Decoder) -> None:
    decoder.prepare(DIGIT, MODEL, nullcontext)
    process = decoder._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    killer = threading.Timer(0.5, os.kill, (process.pid, signal.SIGKILL))
    killer.start()
    assert "found an image that ended its reader" in refusal(decoder, DIGIT)
    killer.join()
    assert decoder.prepare(DIGIT, MODEL, nullcontext).images.shape == (1, *SHAPE)


def test_a_process_that_a_picture_leaves_large_ends(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import clients.web.decoder_process as each; each.RESIDENT_BYTES = 1; each.serve()"
    start = decoder_process.subprocess.Popen
    monkeypatch.setattr(
        decoder_process.subprocess, "Popen", lambda words, **more: start([words[0], "-c", program], **more)
    )
    decoder.prepare(DIGIT, MODEL, nullcontext)
    assert decoder._process is None


def ask_from(address: str, source: str, body: bytes) -> tuple[int, str, float]:
    """Status, the error if any, seconds."""
    started = time.monotonic()
    with closing(http.client.HTTPConnection(address, timeout=60, source_address=(source, 0))) as connection:
        connection.request("POST", "/api/classify", body, PNG)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()).get("error", ""), time.monotonic() - started


@pytest.mark.live
@pytest.mark.slow
def test_twelve_large_pictures_of_one_address_keep_nobody_waiting(
    triton: Triton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder_process, "TIMEOUT_S", 60.0)  # busy cores end no reader
    large, answers = picture(5000, "PNG"), []
    with listening(triton.url, RateLimit()) as address:
        ask_from(address, "127.0.0.1", DIGIT)
        status, _, alone_s = ask_from(address, "127.0.0.3", large)
        assert status == 200

        def send() -> None:
            answers.append(ask_from(address, "127.0.0.2", large))

        senders = [threading.Thread(target=send) for _ in range(12)]
        for sender in senders:
            sender.start()
        time.sleep(0.2)
        status, _, waited_s = ask_from(address, "127.0.0.1", DIGIT)
        for sender in senders:
            sender.join()
    told = sorted((status, round(seconds, 2)) for status, _, seconds in answers)
    print(f"{told}; a person waited {waited_s:.2f} s; a large picture alone took {alone_s:.2f} s")
    assert (status, waited_s < 6 * alone_s) == (200, True), "twelve pictures take twelve times as long"
    statuses = [each for each, _, _ in answers]
    assert statuses.count(429) >= 9, "the first pictures' time is the sender's debt"
    assert set(statuses) == {200, 429}
