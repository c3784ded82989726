import gzip
import os
import tarfile

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from bulk_inputs import expected, png, run, write_network, write_parquet, write_tar
from fsspec.implementations.memory import MemoryFileSystem
from idx_files import idx_bytes

from clients.bulk.app import _prepare_job
from clients.bulk.job_manifest import JobMismatch, parts_to_do
from clients.bulk.scoring import classify_part


def test_a_bad_picture_is_a_row_with_an_error(tmp_path, digits, network_of_ink):
    good, blank = png(digits[39]), png(np.full((28, 28), 255, np.uint8))
    write_tar(tmp_path / "a.tar", {"1.png": good, "2.png": b"no picture", "3.png": blank, "4.png": good})
    ragged = [digits[39].ravel().tolist(), [1, 2], None, [0] * 784]
    write_parquet(tmp_path / "b.parquet", pa.array(ragged, pa.list_(pa.uint8())))
    write_parquet(tmp_path / "c.parquet", pa.array([good, None]))
    table = run([tmp_path], tmp_path / "out", network_of_ink)
    bad = [False, True, True, False, False, True, True, True, False, True]
    assert [error is not None for error in table["error"].to_pylist()] == bad
    assert [label is None for label in table["label"].to_pylist()] == bad
    assert [each is None for each in table["probability"].to_pylist()] == bad
    assert "no ink" in table["error"][2].as_py()
    assert "expected 784 pixels, found 2" in table["error"][5].as_py()


def test_pixels_without_ink_are_errors_and_ink_anywhere_is_not(tmp_path, network_of_ink):
    images = np.zeros((4, 28, 28), np.uint8)
    images[0, 14, 5] = images[2, 1, 1] = images[3, 27, 27] = 21
    images[1] = 20
    (tmp_path / "x-images-idx3-ubyte").write_bytes(idx_bytes(images))
    table = run([tmp_path / "x-images-idx3-ubyte"], tmp_path / "out", network_of_ink)
    assert [error is not None for error in table["error"].to_pylist()] == [False, True, False, False]


def test_a_damaged_shard_loses_only_what_follows_the_damage(tmp_path, digits, network):
    shard = write_tar(tmp_path / "x.tar", {f"{number}.png": png(digits[39]) for number in range(9)})
    shard.write_bytes(shard.read_bytes()[:5000])
    (tmp_path / "x-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(digits))[:-200])
    table = run([tmp_path], tmp_path / "out", network)
    errors = [error for error in table["error"].to_pylist() if error]
    assert len(errors) == 2
    assert all("damaged from here on" in error for error in errors)
    assert table["label"].null_count == 2
    assert table["label"].to_pylist()[1:-1] == [expected(digits[39:])[0][0]] * (len(table) - 2)
    assert len(table) > 3


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda shard: shard[:4500], "truncated header at byte 4096"),
        (lambda shard: shard[:4096], "empty header at byte 4096"),
        (lambda shard: shard[:4100] + b"x" + shard[4101:], "bad checksum at byte 4096"),
    ],
)
def test_a_damaged_tar_header_is_an_error(tmp_path, digits, network, damage, reason):
    shard = write_tar(tmp_path / "x.tar", {f"{number}.png": png(digits[39]) for number in range(9)})
    shard.write_bytes(damage(shard.read_bytes()))
    errors = run([shard], tmp_path / "out", network)["error"].to_pylist()
    assert errors == [None] * 4 + [f"damaged from here on: {reason}"]


def test_a_link_in_a_folder_is_an_error_as_in_a_shard(tmp_path, digits, network):
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "1.png").write_bytes(png(digits[0]))
    (folder / "2.png").symlink_to("1.png")
    (folder / "3.png").symlink_to(tmp_path / "nowhere.png")
    errors = run([folder], tmp_path / "out", network)["error"].to_pylist()
    found = ["1.png", tmp_path / "nowhere.png"]
    assert errors == [None, *(f"expected a picture, found a link to {target}" for target in found)]


def test_a_link_in_a_shard_is_an_error(tmp_path, digits, network):
    shard = write_tar(tmp_path / "x.tar", {"1.png": png(digits[0])})
    with tarfile.open(shard, "a") as more:
        for kind in (tarfile.LNKTYPE, tarfile.SYMTYPE):
            link = tarfile.TarInfo("2.png")
            link.type, link.linkname = kind, "1.png"
            more.addfile(link)
    errors = run([shard], tmp_path / "out", network)["error"].to_pylist()
    assert errors == [None, *["expected a picture, found a link to 1.png"] * 2]


@pytest.mark.parametrize(
    "damage", [lambda content: content + gzip.compress(b"x"), lambda content: content[:-8] + b"12345678"]
)
def test_the_end_of_a_zipped_file_is_checked(tmp_path, digits, network, damage):
    (tmp_path / "x.idx.gz").write_bytes(damage(gzip.compress(idx_bytes(digits))))
    table = run([tmp_path / "x.idx.gz"], tmp_path / "out", network)
    assert len(table) == 41
    assert "damaged" in table["error"][40].as_py()


def test_a_row_without_pixels_costs_itself(tmp_path, digits, network):
    rows = digits[:9].reshape(9, -1)
    holes = [*rows[:3].tolist(), None, [None, *rows[4].tolist()[1:]], *rows[5:].tolist()]
    lists = write_parquet(tmp_path / "lists.parquet", pa.array(holes, pa.list_(pa.uint8())))
    fixed = pa.array([None if number == 3 else row.tobytes() for number, row in enumerate(rows)], pa.binary(784))
    labels = expected(digits[:9])[0]
    table = run([lists], tmp_path / "lists", network)
    assert table["label"].to_pylist() == [*labels[:3], None, None, *labels[5:]]
    assert table["error"][4].as_py() == "expected 784 pixels, found nulls among them"
    table = run([write_parquet(tmp_path / "fixed.parquet", fixed)], tmp_path / "fixed", network)
    assert table["label"].to_pylist() == [*labels[:3], None, *labels[4:]]


def test_a_damaged_page_fails_its_part_and_the_file_is_named(tmp_path, digits, network):
    path = write_parquet(tmp_path / "x.parquet", pa.array([each.tobytes() for each in digits[:2]], pa.binary(784)))
    path.write_bytes(b"PAR1" + bytes(2000) + path.read_bytes()[2004:])
    with pytest.raises(OSError, match=rf"^{path}: "):
        run([path], tmp_path / "out", network)


def test_ids_that_are_no_text_fail_their_part(tmp_path, digits, network):
    pixels = pa.array([each.tobytes() for each in digits[:2]], pa.binary(784))
    path = write_parquet(tmp_path / "x.parquet", pixels, key=pa.array([b"a", b"\xff"]))
    with pytest.raises(JobMismatch, match="expected ids that are text, found binary"):
        run([path], tmp_path / "out", network, id_column="key")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_numbers_are_errors(tmp_path, digits, value):
    weights = np.zeros((784, 10), np.float32)
    weights[np.flatnonzero(digits[39] == 0)[0], 3] = value  # of a pixel without ink: 0 times infinity is NaN
    network = write_network(tmp_path / "x.onnx", weights, preprocessing="photo")
    (tmp_path / "x.idx").write_bytes(idx_bytes(digits[39:]))
    table = run([tmp_path / "x.idx"], tmp_path / "out", network)
    assert table["error"].to_pylist() == ["expected finite logits, found NaN or infinity"]
    assert (table["label"].null_count, table["probability"].null_count) == (1, 1)


def test_names_that_are_not_utf8(tmp_path, digits, network):
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / os.fsdecode(b"b\xfc.png")).write_bytes(png(digits[0]))
    with tarfile.open(folder / os.fsdecode(b"\xe4.tar"), "w", encoding="latin-1", format=tarfile.GNU_FORMAT) as shard:
        shard.add(folder / os.fsdecode(b"b\xfc.png"), "b\u00fc.png")
    (folder / os.fsdecode(b"\xf6.idx")).write_bytes(idx_bytes(digits[:1]))
    table = run([folder], tmp_path / "out", network)
    ids = [r"b\udcfc.png", r"\udce4.tar/b\udcfc.png", r"\udcf6.idx[0]"]
    assert sorted(table["id"].to_pylist()) == sorted(f"{folder}/{each}" for each in ids)
    assert table["label"].to_pylist() == expected(digits[:1])[0] * 3


def test_a_pipe_is_not_waited_for(tmp_path, network):
    os.mkfifo(tmp_path / "1.png")
    assert run([tmp_path], tmp_path / "out", network)["error"].to_pylist() == ["expected a picture, found a pipe"]


def test_storage_that_denies_access_is_no_error_of_the_picture(tmp_path, digits, network, monkeypatch):
    fsspec.filesystem("memory").pipe_file("/expired/1.png", png(digits[0]))
    job, target = _prepare_job(("memory://expired",), str(tmp_path / "out"), network, "image", "id", None)

    def denied(*unused, **options):
        raise PermissionError("The provided token has expired")  # as of s3fs, without a number

    monkeypatch.setattr(MemoryFileSystem, "_open", denied)
    (part,) = parts_to_do(target, job, (0, 1))
    with pytest.raises(PermissionError, match="expired"):
        classify_part(job, part)
