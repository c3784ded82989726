import io
import subprocess
import sys
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from clients.preprocess import BlankImage, InvalidImage, read_image, to_model_input
from common import picture_formats

PIXELS = np.random.default_rng(0).integers(0, 256, (48, 64), dtype=np.uint8)


def encoded(form, mode="RGB", **options):
    stream = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(stream, form, **options)
    return stream.getvalue()


def chunk(kind, body):
    return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")


def png(width, height, depth=8, colour=0):
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([depth, colour, 0, 0, 0])
    chunks = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(bytes(1000))), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


WHOLE = {form: encoded(form) for form in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "PPM")} | {
    "TIFF": encoded("TIFF", compression="tiff_lzw"),
    "progressive JPEG": encoded("JPEG", progressive=True),
}


def refusal(content):
    try:
        found = read_image(io.BytesIO(content))
    except InvalidImage as error:
        text = str(error)
    else:
        assert found.width * found.height <= picture_formats.MOST_PIXELS
        return None
    assert "\n" not in text
    assert text.startswith("image: expected")
    return text


@pytest.mark.parametrize(
    "form", ["EPS", "ICNS", "PDF", "SGI", "DDS", "PCX", "TGA", "ICO", "JPEG2000", "MSP", "SPIDER", "XBM"]
)
def test_rare_formats_are_not_tried(form):
    mode = {"MSP": "1", "XBM": "1", "SPIDER": "F"}.get(form, "RGB")
    assert "no format" in refusal(encoded(form, mode))


@settings(deadline=2000)
@given(st.sampled_from(sorted(WHOLE)), st.floats(0, 1))
@example("PNG", 0.0)
def test_truncated_at_any_byte(name, share):
    whole = WHOLE[name]
    cut = whole[: int(share * len(whole) * 0.9)]
    assert refusal(cut) is not None


@settings(deadline=2000)
@given(st.sampled_from(sorted(WHOLE)), st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255))))
def test_flipped_anywhere(name, changes):
    damaged = bytearray(WHOLE[name])
    for place, mask in changes:
        damaged[int(place * len(damaged))] ^= mask
    if refusal(bytes(damaged)) is None:
        with suppress(BlankImage):
            to_model_input(read_image(io.BytesIO(damaged)))


@settings(deadline=2000)
@given(
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.sampled_from([1, 2, 4, 8, 16, 255]),
    st.sampled_from([0, 2, 3, 4, 6, 255]),
)
@example(2**31 - 1, 2**31 - 1, 16, 6)
@example(1, 2**31 - 1, 8, 6)
@example(0, 0, 8, 0)
def test_png_of_any_size_and_kind(width, height, depth, colour):
    found = refusal(png(width, height, depth, colour))
    if width * height > picture_formats.MOST_PIXELS:
        assert found is not None


@pytest.mark.parametrize("source", [b"\x89PNG", 7, None, ["a.png"], np.zeros((28, 28))], ids=lambda s: type(s).__name__)
def test_a_source_that_is_neither_path_nor_file_is_refused(source):
    with pytest.raises(InvalidImage, match=f"open binary file, found {type(source).__name__}"):
        read_image(source)


@pytest.mark.parametrize("content", ["text", 7])
def test_a_text_file_is_refused(content):
    class Odd(io.StringIO):
        def read(self, *_):
            return content

    with pytest.raises(InvalidImage, match="image: expected a picture, found a damaged file: "):
        read_image(Odd())


def test_a_path_may_be_text_or_path(tmp_path):
    path = tmp_path / "noise.png"
    path.write_bytes(WHOLE["PNG"])
    assert read_image(path).size == read_image(str(path)).size == (64, 48)
    with pytest.raises(InvalidImage, match="null"):
        read_image("a\0b.png")


PEAK = """
import sys
from clients.errors import InvalidImage
from clients.images.decode import read_image
try:
    print(read_image(sys.argv[1]).size)
except InvalidImage:
    print("refused")
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
@pytest.mark.parametrize(("form", "most_mib"), [("png", 300), ("webp", 900), ("jpg", 100)])
def test_memory_of_a_huge_picture(tmp_path, form, most_mib):
    path = tmp_path / f"sheet.{form}"
    Image.new("RGB", (5000, 10_000), "white").save(path, method=0)  # WebP's quickest
    child = subprocess.run([sys.executable, "-c", PEAK, path], capture_output=True, check=True, text=True)
    size, peak_kib = child.stdout.splitlines()
    assert size != "refused"
    assert int(peak_kib) < most_mib * 1024
