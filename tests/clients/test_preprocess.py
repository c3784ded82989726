"""A digit in any picture comes out as the same 28x28 image."""

import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from PIL import ExifTags, Image

from clients.preprocess import read_image, to_model_input

ENLARGED = 10.0  # mean grey levels of 255
BILEVEL = 18.0  # strokes without grey edges
ANOTHER = 25.0  # different digits differ by more


def large(pixels, factor=8):
    return Image.fromarray(pixels).resize((28 * factor, 28 * factor), Image.Resampling.BICUBIC)


def on_paper(pixels, side=300, corner=(30, 50), paper=235, ink=40, factor=6):
    cover = np.zeros((side, side))
    left, top = corner
    cover[top : top + 28 * factor, left : left + 28 * factor] = np.asarray(large(pixels, factor)) / 255
    return np.rint(paper + cover * (ink - paper)).astype(np.uint8)


def difference(image, expected):
    found = to_model_input(image)
    assert found.shape == (1, 28, 28)
    assert found.dtype == np.uint8
    return np.abs(found[0].astype(int) - expected).mean()


@pytest.mark.slow
def test_mnist_images_pass_nearly_unchanged(mnist):
    differences = np.array([difference(Image.fromarray(image), image) for image in mnist])
    assert np.median(differences) == 0
    assert np.mean(differences < 1) > 0.98  # the others move by one pixel


def test_digits_differ_more_than_the_tolerance(mnist):
    pairs = pairwise(mnist[:100])
    assert np.median([difference(Image.fromarray(image), other) for image, other in pairs]) > ANOTHER


def test_ink_fills_the_box_and_is_centred(digit):
    found = to_model_input(Image.fromarray(on_paper(digit)))[0].astype(float)
    rows, columns = np.flatnonzero(found.any(axis=1)), np.flatnonzero(found.any(axis=0))
    assert max(np.ptp(rows), np.ptp(columns)) + 1 == 20
    assert found.max() == 255
    for axis in (0, 1):
        mass = found.sum(axis=1 - axis)
        assert abs(mass @ np.arange(28) / mass.sum() - 14) <= 0.5


@pytest.mark.parametrize("factor", [1, 3, 8, 40])
def test_either_polarity_gives_the_same(digit, factor):
    picture = np.asarray(large(digit, factor))
    light = to_model_input(Image.fromarray(picture))
    assert np.abs(light.astype(int) - to_model_input(Image.fromarray(255 - picture))).max() <= 1
    assert difference(Image.fromarray(picture), digit) < ENLARGED


def test_a_hard_shadow_is_not_ink_and_does_not_weaken_ink(digit):
    light = np.where(np.add.outer(np.arange(300), 3 * np.arange(300)) < 516, 1.0, 0.5)  # across the digit
    shaded = Image.fromarray((light * on_paper(digit)).astype(np.uint8))
    assert difference(shaded, digit) < 1.5 * ENLARGED
    seen = to_model_input(shaded)[0]
    parts = [seen[:14].max(), seen[14:].max()]
    assert min(parts) > 0.8 * max(parts)


def transparent(digit, mode, colour):
    picture = Image.new(mode, (224, 224), colour)
    picture.putalpha(large(digit))
    return picture


def palette(digit):
    """Two colours, of which the darker is transparent."""
    stroke = large(digit).point(lambda level: level > 128)
    stroke.putpalette([0, 0, 0, 20, 20, 20])
    stroke.info["transparency"] = 0
    return stroke


def ruled_with_specks(digit):
    levels = on_paper(digit)
    levels[10::30] = np.minimum(levels[10::30], 190)
    levels[20:26, 270:276] = levels[280:284, 15:20] = 30
    return levels


PICTURES = {
    **{
        f"at {corner}": (lambda digit, corner=corner: on_paper(digit, corner=corner), ENLARGED)
        for corner in ((0, 0), (120, 10), (60, 130))
    },
    "ruled, with specks": (ruled_with_specks, ENLARGED),
    "16 bits": (lambda digit: Image.fromarray(on_paper(digit).astype(np.uint16) * 257), ENLARGED),
    "tiny": (lambda digit: on_paper(digit, side=2500, corner=(1900, 700), factor=1), 2),
    "small": (lambda digit: on_paper(digit, side=2500, corner=(300, 1700), factor=4), ENLARGED),
    "transparent colour": (lambda digit: transparent(digit, "RGB", (30, 20, 90)), ENLARGED),
    "transparent grey": (lambda digit: transparent(digit, "L", 0), ENLARGED),
    "P": (lambda digit: Image.fromarray(on_paper(digit)).quantize(16), ENLARGED),
    "P, transparent": (palette, BILEVEL),
    "1": (lambda digit: Image.fromarray(on_paper(digit)).convert("1", dither=Image.Dither.NONE), BILEVEL),
    **{
        mode: (lambda digit, mode=mode: Image.fromarray(on_paper(digit)).convert(mode), ENLARGED)
        for mode in ("L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "F")
    },
}


@pytest.mark.parametrize("name", PICTURES)
def test_any_place_and_mode_gives_the_digit(digit, name):
    draw, most = PICTURES[name]
    picture = draw(digit)
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    assert difference(image, digit) < most


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
def test_rotation_in_exif_is_honoured(digit, tmp_path, suffix):
    upright = Image.fromarray(on_paper(digit))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    path = tmp_path / f"turned.{suffix}"
    upright.transpose(Image.Transpose.ROTATE_90).save(path, exif=exif)
    assert difference(read_image(path), digit) < ENLARGED
    upright.transpose(Image.Transpose.ROTATE_90).save(path)
    assert difference(read_image(path), digit) > ENLARGED


MEASURED = """
import sys, time
from clients.preprocess import read_image, to_model_input
start = time.process_time()
image = to_model_input(read_image(sys.argv[1]))
print(time.process_time() - start)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
sys.stdout.flush()
sys.stdout.buffer.write(image.tobytes())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
@pytest.mark.parametrize(
    ("mode", "suffix", "most_s"),
    [("RGB", "jpg", 0.5), ("RGBA", "png", 1.5), ("F", "tif", 1.6)],  # measured: 0.08, 0.26, 0.31
)
def test_a_photo_of_twelve_megapixels(digit, tmp_path, mode, suffix, most_s):
    sheet = np.full((3000, 4000), 235, dtype=np.uint8)
    sheet[900:2020, 1500:2620] = on_paper(digit, side=1120, corner=(0, 0), factor=40)
    sheet += np.random.default_rng(0).integers(0, 12, sheet.shape, dtype=np.uint8)
    path = tmp_path / f"photo.{suffix}"
    Image.fromarray(sheet).convert(mode).save(path, compress_level=1)
    child = subprocess.run([sys.executable, "-c", MEASURED, path], capture_output=True, check=True)
    duration_s, peak_kib, pixels = child.stdout.split(b"\n", 2)
    assert np.abs(np.frombuffer(pixels, np.uint8).reshape(28, 28).astype(int) - digit).mean() < ENLARGED
    assert int(peak_kib) < 300 * 1024
    assert float(duration_s) < most_s


def test_another_size_of_field(digit):
    found = to_model_input(Image.fromarray(on_paper(digit)), size=(56, 56))
    assert found.shape == (1, 56, 56)
    assert np.ptp(np.flatnonzero(found[0].any(axis=1))) + 1 == 40
