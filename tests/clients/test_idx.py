import gzip
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from idx_files import idx_bytes

from clients.images.decode import IdxFile
from clients.preprocess import InvalidImage
from common import idx as module
from common.idx import is_idx

IMAGES = np.random.default_rng(0).integers(0, 256, (11, 6, 5), dtype=np.uint8)
WHOLE = idx_bytes(IMAGES)
# A time would change the tests' names.
PACKED = gzip.compress(WHOLE, mtime=0)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("idx") / "images"


def read(path, content, dimensions=2):
    path.write_bytes(content)
    with IdxFile(str(path), dimensions) as file:
        return file.count, file.item_shape, list(file)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("portion", [1, 30, 100, 1 << 18])
def test_idx_items_are_complete_and_in_order(path, pack, portion, monkeypatch):
    monkeypatch.setattr(module, "_PORTION", portion)
    count, shape, items = read(path, pack(WHOLE))
    assert (count, shape) == (11, (6, 5))
    np.testing.assert_array_equal(np.stack(items), IMAGES)
    labels = np.arange(7, dtype=np.uint8)
    assert [int(label) for label in read(path, pack(idx_bytes(labels)), dimensions=0)[2]] == list(range(7))
    assert read(path, pack(idx_bytes(IMAGES[:0])))[2] == []
    assert is_idx(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected the idx magic 00000803, unsigned bytes in 3 dimensions, found nothing"),
        (WHOLE[:3], "found 000008"),
        (b"\x89PNG", "found 89504e47"),
        (idx_bytes(IMAGES, kind=13), "found 00000d03"),
        (idx_bytes(IMAGES[0]), "found 00000802"),
        (idx_bytes(IMAGES[None]), "found 00000804"),
        (WHOLE[:9], "expected 3 sizes of 4 bytes, found 5 bytes"),
        (idx_bytes(IMAGES[:, :0]), "expected items of 1 to 67108864 bytes"),
        (struct.pack(">IIII", 0x803, 1, 0xFFFFFFFF, 0xFFFFFFFF), "expected items of 1 to 67108864 bytes"),
        (WHOLE[:16], "expected 11 items of 30 bytes, found 0 and 0 bytes"),
        (WHOLE[:-1], "expected 11 items of 30 bytes, found 10 and 29 bytes"),
        (WHOLE + b"x", "expected 11 items of 30 bytes, found more bytes"),
        (PACKED[:-9], "found unreadable data"),
        (PACKED[:30] + b"x" * 30, "found unreadable data"),
        (PACKED + b"x", "found unreadable data"),
        (PACKED + PACKED, "found more bytes"),
        (b"\x1f\x8b", "found unreadable data"),
    ],
)
def test_an_error_in_an_idx_file_is_named(path, content, message):
    with pytest.raises(InvalidImage, match=message) as raised:
        read(path, content)
    assert str(raised.value).startswith(f"{path}: expected ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize(("start", "found"), [(0, "10 and 0"), (9, "10 and 0"), (10, "at most 10"), (50, "at most 50")])
def test_rows_beyond_the_end_of_an_idx_file_are_refused(path, pack, start, found):
    path.write_bytes(pack(struct.pack(">IIII", 0x803, 100, 6, 5) + bytes(300)))
    with IdxFile(str(path), 2) as file, pytest.raises(InvalidImage, match=f"100 items of 30 bytes, found {found}"):
        list(file.blocks(start, 100, 300))


@pytest.mark.parametrize("name", ["", "missing", "missing/deep", "a\0b"])
def test_no_such_file(tmp_path, name):
    assert not is_idx(str(tmp_path / name))
    with pytest.raises(InvalidImage, match="expected an idx file, found"):
        IdxFile(str(tmp_path / name), 2)


@pytest.mark.parametrize(
    "head", [b"GIF8", b"\0\0\1\0", b"\0\0\2\0", b"\0\0\x0a\0", b"\0\0\x08\0", b"\0\0\x08\5", b"\0\0\x08"]
)
def test_other_formats_are_not_taken_for_idx(path, head):
    path.write_bytes(head)
    assert not is_idx(str(path))


@pytest.mark.slow
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_huge_counts_in_an_idx_header_cost_no_memory(path, pack):
    """A header claims 4 billion images of 64 MiB; a file unpacks to 100 MB."""
    path.write_bytes(pack(struct.pack(">IIII", 0x803, 0xFFFFFFFF, 8192, 8192) + b"x" * 1000))
    tracemalloc.start()
    with IdxFile(str(path), 2) as file, pytest.raises(InvalidImage, match="found 0 and 1000 bytes"):
        list(file)
    claimed = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    path.write_bytes(pack(struct.pack(">IIII", 0x803, 127_551, 28, 28) + bytes(127_551 * 784)))
    tracemalloc.reset_peak()
    with IdxFile(str(path), 2) as file:
        assert sum(1 for _ in file) == 127_551
    unpacked = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert claimed < 70e6
    assert unpacked < 3e6


@given(st.data())
def test_damaged_files_give_items_or_an_error(path, data):
    content = bytearray(data.draw(st.sampled_from([WHOLE, gzip.compress(WHOLE), idx_bytes(IMAGES[0, 0]), b""])))
    for _ in range(data.draw(st.integers(0, 4)) if content else 0):
        content[data.draw(st.integers(0, min(len(content), 40) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(content[: data.draw(st.integers(0, len(content)))]) + data.draw(st.binary(max_size=8))
    path.write_bytes(content)
    is_idx(str(path))
    for dimensions in (0, 2):
        try:
            count, shape, items = read(path, content, dimensions)
        except InvalidImage:
            continue
        assert len(items) == count
        assert all(item.shape == shape for item in items)
