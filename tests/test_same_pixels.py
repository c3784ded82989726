"""Training and all clients read the same pixels of a picture file, and refuse it with the same line."""

import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image

from clients.bulk.job_manifest import Part, Settings
from clients.bulk.part_reader import Reader
from clients.errors import InvalidImage
from clients.images.picture_source import Pictures
from clients.images.prepare import Preparation
from clients.web.decoder_process import Decoder
from common import picture_formats, pictures
from common.picture_formats import FORMATS, SUFFIXES
from models.data import DataError, folder
from models.data.folder import load_folder

SIZE = (14, 21)  # height, width
NOISE = np.random.default_rng(0).integers(0, 256, (40, 60, 4), np.uint8)
OTHER = Image.fromarray(255 - NOISE[..., :3])
COLOURS = Image.fromarray(np.ascontiguousarray(NOISE[..., :3]))
DEEP = NOISE[..., 0].astype(np.uint16) * 9  # 12 bits
TURNED = Image.Exif()
TURNED[ExifTags.Base.Orientation] = 6

Pixels = Any  # uint8 (C, H, W)
Write = Callable[[Path], object]


def saved(mode: str, **options: Any) -> Write:
    picture = Image.fromarray(NOISE, "RGBA").convert("RGB" if mode == "LAB" else mode)
    if mode == "LAB":
        picture = picture.convert("LAB")
    return lambda path: picture.copy().save(path, **options)


def array(values: Any) -> Write:
    return lambda path: Image.fromarray(values).save(path)


def colours(**options: Any) -> Write:
    return lambda path: COLOURS.copy().save(path, **options)  # Pillow keeps an encoder's options


def two_frames(**options: Any) -> Write:
    return lambda path: COLOURS.copy().save(path, save_all=True, append_images=[OTHER.copy()], **options)


LARGE = Image.fromarray(np.kron(NOISE[..., :3], np.ones((52, 43, 1), np.uint8)))  # decoded at half its size
FILES: dict[str, Write] = {
    **{f"{mode} png": saved(mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA")},
    **{f"{mode} tiff": saved(mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "LAB")},
    **{f"{mode} jpeg": saved(mode) for mode in ("L", "RGB", "CMYK", "YCbCr")},
    **{f"{mode} bmp": saved(mode) for mode in ("1", "L", "P", "RGB", "RGBA")},
    **{f"{mode} gif": saved(mode) for mode in ("1", "L", "P", "RGB", "RGBA")},
    **{f"{mode} webp": saved(mode, lossless=True) for mode in ("L", "RGB", "RGBA")},
    **{f"{mode} avif": saved(mode) for mode in ("L", "RGB", "RGBA")},
    **{f"{mode} {suffix}": saved(mode) for mode, suffix in (("1", "pbm"), ("L", "pgm"), ("RGB", "ppm"))},
    "a colour that is transparent png": colours(transparency=tuple(NOISE[20, 20, :3].tolist())),
    "a grey that is transparent png": saved("L", transparency=128),
    "a palette of transparent colours png": saved("P", transparency=bytes(range(256))),
    **{f"12 bits {suffix}": array(DEEP) for suffix in ("png", "tiff", "pgm")},
    "16 bits big-endian tiff": lambda path: Image.frombytes("I;16B", (60, 40), (DEEP * 7).astype(">u2").tobytes()).save(
        path
    ),
    "32 bits tiff": array(DEEP.astype(np.int32) - 999),
    "floating point tiff": array(DEEP.astype(np.float32) / 7 - 99),
    "not a number tiff": array(np.where(DEEP > 2000, np.float32(np.nan), DEEP).astype(np.float32)),
    **{f"turned {suffix}": colours(exif=TURNED) for suffix in ("jpeg", "png", "tiff", "webp")},
    **{f"several frames {suffix}": two_frames() for suffix in ("gif", "tiff", "webp")},
    "several frames png": two_frames(),
    "a first frame of its own png": two_frames(default_image=True),
    "a preview jpeg": two_frames(format="MPO"),
    "large jpeg": lambda path: LARGE.save(path),
    "large progressive jpeg": lambda path: LARGE.save(path, progressive=True),
    "another suffix png": colours(format="JPEG"),
}


def written(name: str, write: Write, place: Path) -> Path:
    """A folder of two classes whose four pictures are the same."""
    suffix = name.split()[-1]
    for kind in ("a", "b"):
        (place / kind).mkdir()
        for number in range(2):
            write(place / kind / f"{number}.{suffix}")
    return place


def trained(place: Path) -> Pixels:
    data = load_folder(place, SIZE)
    images = np.concatenate([data.train_images, data.test_images])
    assert (len(images), (images == images[0]).all()) == (4, True)
    return images[0]


def by_infer(path: Path, shape: Any) -> Pixels:
    failed: list[str] = []
    source = Pictures([str(path)], lambda name, reason: failed.append(reason), lambda name, note: None)
    found = [picture.as_inputs(Preparation(shape, "photo", None, None), split=False).images[0] for picture in source]
    if failed:
        raise InvalidImage(failed[0])
    return found[0]


def by_bulk(path: Path, shape: Any) -> Pixels:
    reader = Reader(Preparation(shape, "photo", None, None), Settings((), "", "", "", "", "", "", None))
    (block,) = reader.blocks(Part(0, "pictures", (str(path),)))
    if block.errors:
        raise InvalidImage(block.errors[0])
    return block.pixels[0]


@pytest.fixture(scope="module")
def page() -> Iterator[Decoder]:
    decoder = Decoder()
    yield decoder
    decoder.close()


def by_page(decoder: Decoder, path: Path, shape: Any) -> Pixels:
    return decoder.prepare(path.read_bytes(), Preparation(shape, "photo", None, None), nullcontext).images[0]


def test_the_table_has_every_format_and_suffix(tmp_path: Path) -> None:
    formats = set()
    for name, write in FILES.items():
        path = tmp_path / f"x.{name.split()[-1]}"
        write(path)
        with Image.open(path) as picture:
            formats.add(picture.format)
    assert formats - {"MPO"} == {*FORMATS}
    assert {f".{name.split()[-1]}" for name in FILES} | {".jfif", ".jpg", ".tif"} == SUFFIXES


@pytest.mark.parametrize("name", FILES)
def test_all_read_the_same_pixels(tmp_path: Path, page: Decoder, name: str) -> None:
    place = written(name, FILES[name], tmp_path)
    found = trained(place)
    (path, *_) = (place / "a").iterdir()
    assert found.std() > 5, "noise"
    for road in (by_infer, by_bulk, partial(by_page, page)):
        np.testing.assert_array_equal(road(path, found.shape), found)


def test_grey_pictures_among_coloured_are_as_clients_send_them(tmp_path: Path) -> None:
    for kind in ("a", "b"):
        (tmp_path / kind).mkdir()
        saved("LA")(tmp_path / kind / "0.png")
        saved("RGB")(tmp_path / kind / "1.png")
    data = load_folder(tmp_path, SIZE)
    images = {image.tobytes() for image in (*data.train_images, *data.test_images)}
    assert images == {by_infer(path, (3, *SIZE)).tobytes() for path in (tmp_path / "a").iterdir()}
    assert len(images) == 2


def frame(path: Path, noted: object, number: int) -> Image.Image:
    with Image.open(path) as picture:
        picture.seek(number)
        return picture.copy()


def on_black(picture: Image.Image, shape: Any) -> Pixels:
    under = Image.new("RGBA", picture.size, "black")
    return pictures.photo_pixels(Image.alpha_composite(under, picture.convert("RGBA")), shape)


def cut_to_eight_bits(picture: Image.Image, shape: Any) -> Pixels:
    return pictures.photo_pixels(Image.fromarray(np.asarray(picture).astype(np.uint8)), shape)


def nearest(picture: Image.Image, shape: Any) -> Pixels:
    return pictures.photo_pixels(picture.resize(shape[:0:-1], Image.Resampling.NEAREST), shape)


PLANTED: dict[str, tuple[str, object]] = {
    "large jpeg": ("read_picture", partial(pictures.read_picture, full_size=True)),
    "turned jpeg": ("read_picture", partial(frame, number=0)),
    "several frames png": ("read_picture", partial(frame, number=1)),
    "RGBA png": ("photo_pixels", on_black),
    "12 bits png": ("photo_pixels", cut_to_eight_bits),
    "RGB png": ("photo_pixels", nearest),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_difference_is_found(
    tmp_path: Path, page: Decoder, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, *PLANTED[name])
    with pytest.raises(AssertionError, match="Arrays are not equal"):
        test_all_read_the_same_pixels(tmp_path, page, name)


def cut(mode: str, share: float) -> Write:
    def write(path: Path) -> None:
        saved(mode)(path)
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])

    return write


def content(data: bytes) -> Write:
    return lambda path: path.write_bytes(data)


def claimed(width: int, height: int) -> Write:
    """A PNG whose header claims a size."""
    header = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 0, 0, 0, 0])
    chunks = (header, b"IDAT" + zlib.compress(bytes(9)), b"IEND")
    framed = [(len(each) - 4).to_bytes(4, "big") + each + zlib.crc32(each).to_bytes(4, "big") for each in chunks]
    return content(b"\x89PNG\r\n\x1a\n" + b"".join(framed))


def program() -> bytes:
    stream = io.BytesIO()
    COLOURS.save(stream, "EPS")
    return stream.getvalue()


PICTURE = "expected a picture, found"
REFUSED: dict[str, tuple[Write, str]] = {
    "empty png": (content(b""), f"{PICTURE} an empty file"),
    "text jpg": (content(b"seven\n"), f"{PICTURE} no format that is read here"),
    "a program tif": (content(program()), f"{PICTURE} no format that is read here"),
    "no file gif": (lambda path: path.symlink_to("nowhere"), f"{PICTURE} No such file or directory"),
    "half png": (cut("RGB", 0.5), f"{PICTURE} a damaged file: "),
    "half jpeg": (cut("RGB", 0.5), f"{PICTURE} a damaged file: "),
    "half webp": (cut("RGB", 0.5), f"{PICTURE} a damaged file: "),
    "half tiff": (cut("RGB", 0.5), f"{PICTURE} "),
    "half gif": (cut("P", 0.5), f"{PICTURE} a damaged file: "),
    "half bmp": (cut("RGB", 0.5), f"{PICTURE} a damaged file: "),
    "half ppm": (cut("RGB", 0.5), f"{PICTURE} a damaged file: "),
    "half avif": (cut("RGB", 0.5), f"{PICTURE} "),
    "too large png": (claimed(9, 10**7), "expected at most 89478485 pixels, found 9x10000000"),
    "a bomb png": (claimed(10**9, 10**9), "expected at most 89478485 pixels, found more"),
}


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_all_refuse_a_file_with_the_same_line(tmp_path: Path, name: str) -> None:
    write, said = REFUSED[name]
    place = written("good png", saved("L"), tmp_path)
    path = place / "a" / f"bad.{name.split()[-1]}"
    write(path)
    with pytest.raises(DataError) as refused:
        load_folder(place, SIZE)
    assert str(refused.value).startswith(f"{path}: {said}")
    with pytest.raises(InvalidImage) as invalid:
        by_infer(path, (1, *SIZE))
    assert str(invalid.value) == str(refused.value)


def test_there_is_one_limit(tmp_path: Path, page: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert picture_formats.MOST_PIXELS == Image.MAX_IMAGE_PIXELS
    place = written("RGB png", saved("RGB"), tmp_path)
    monkeypatch.setattr(picture_formats, "MOST_PIXELS", 60 * 40)
    np.testing.assert_array_equal(by_infer(place / "a/0.png", (3, *SIZE)), trained(place))
    monkeypatch.setattr(picture_formats, "MOST_PIXELS", 60 * 40 - 1)
    said = r"/0\.png: expected at most 2399 pixels, found 60x40"
    with pytest.raises(DataError, match=said):
        load_folder(place, SIZE)
    with pytest.raises(InvalidImage, match=said):
        by_infer(place / "a/0.png", (3, *SIZE))
