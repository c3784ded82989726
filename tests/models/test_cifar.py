import hashlib
import io
import tarfile

import numpy as np
import pooch
import pytest
from cifar_files import random_batches, write_binary

from models.data import DataError, cifar, load_dataset
from models.data.cifar import BATCHES, BINARY_FOLDER, find_cifar10, load_cifar10, unpack


@pytest.fixture
def batches():
    return random_batches()


def refusal(call, *arguments):
    with pytest.raises(DataError) as refused:
        call(*arguments)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("inside", [True, False], ids=["in its folder", "folder itself"])
def test_batches_in_both_places(tmp_path, batches, inside):
    write_binary(tmp_path / BINARY_FOLDER if inside else tmp_path, batches)
    dataset = load_dataset("cifar10", tmp_path)
    train = [batches[f"data_batch_{number}"] for number in range(1, 6)]
    np.testing.assert_array_equal(dataset.train_images, np.concatenate([images for images, _ in train]))
    np.testing.assert_array_equal(dataset.train_labels, np.concatenate([labels for _, labels in train]))
    np.testing.assert_array_equal(dataset.test_images, batches["test_batch"][0])
    np.testing.assert_array_equal(dataset.test_labels, batches["test_batch"][1])
    assert (dataset.test_images.dtype, dataset.test_labels.dtype) == (np.uint8, np.int64)


def test_planes_are_red_green_blue(tmp_path, batches):
    record = bytes([6]) + bytes([200]) * 1024 + bytes([100]) * 1024 + bytes([50]) * 1024
    for name in batches:
        (tmp_path / f"{name}.bin").write_bytes(record)
    dataset = load_cifar10(tmp_path)
    assert dataset.test_images[0].mean(axis=(1, 2)).tolist() == [200, 100, 50]
    assert dataset.labels[dataset.test_labels[0]] == "frog"


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        *(
            ("data_batch_3", change, "/data_batch_3.bin: expected records of 3073 bytes, found ")
            for change in (lambda data: data[:-1], lambda data: data + b"\0", lambda data: b"")
        ),
        (
            "data_batch_3",
            lambda data: data[:-3073],
            ": expected as many pictures in each of the six batches, found [3, 3, 2, 3, 3, 3]",
        ),
        ("test_batch", lambda data: None, "/test_batch.bin: expected a batch of CIFAR-10"),
        ("test_batch", lambda data: b"\x0a" + data[1:], "expected labels from 0 to 9, found 10"),
    ],
    ids=["a byte less", "a byte more", "nothing", "a record less", "no batch", "another class"],
)
def test_damaged_batches(tmp_path, batches, name, change, said):
    path = write_binary(tmp_path, batches) / f"{name}.bin"
    content = change(path.read_bytes())
    path.unlink() if content is None else path.write_bytes(content)
    found = refusal(load_cifar10, tmp_path)
    assert found.startswith(str(tmp_path))
    assert said in found


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "data_batch_1").write_bytes(b"\x80\x02}.")  # as pickled for Python: not read
    assert f"{tmp_path}: expected data_batch_1.bin to " in refusal(load_cifar10, tmp_path)


def packed(contents, kind=tarfile.REGTYPE):
    """Gzipped; a link leads to /etc/hostname."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = (kind, "/etc/hostname") if content is None else (tarfile.REGTYPE, "")
            member.size = len(content or b"")
            tar.addfile(member, io.BytesIO(content or b""))
    return stream.getvalue()


@pytest.fixture
def members(tmp_path, batches):
    folder = write_binary(tmp_path / "packed", batches)
    found = {f"{BINARY_FOLDER}/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())}
    return found | {f"{BINARY_FOLDER}/readme.html": b"<html>"}


def test_it_is_downloaded_once(tmp_path, monkeypatch, serve, members):
    archive = packed(members)
    url, requests = serve({f"/{cifar.ARCHIVE}": archive})
    monkeypatch.delenv("CIFAR10_DIR", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / project)
    monkeypatch.setattr(cifar, "MIRRORS", (f"{url}/",))
    assert "cifar-10-binary.tar.gz: expected it from a mirror" in refusal(find_cifar10, None)  # another checksum
    monkeypatch.setattr(cifar, "CHECKSUMS", {cifar.ARCHIVE: "md5:" + hashlib.md5(archive).hexdigest()})
    for _ in range(2):
        assert len(load_dataset("cifar10").train_labels) == 15
    assert requests == [f"/{cifar.ARCHIVE}"] * 2
    kept = [path.relative_to(tmp_path) for path in (tmp_path / "vitbn").rglob("*") if path.is_file()]
    assert sorted(path.name for path in kept) == sorted(f"{name}.bin" for name in BATCHES)


def test_another_process_that_was_first_removes_the_archive(tmp_path, monkeypatch, serve, members):
    """Two trainings may download at once."""
    archive = packed(members)
    monkeypatch.delenv("CIFAR10_DIR", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / project)
    monkeypatch.setattr(cifar, "MIRRORS", (f"{serve({f'/{cifar.ARCHIVE}': archive})[0]}/",))
    monkeypatch.setattr(cifar, "CHECKSUMS", {cifar.ARCHIVE: "md5:" + hashlib.md5(archive).hexdigest()})
    monkeypatch.setattr(cifar, "unpack", lambda path, folder: (unpack(path, folder), path.unlink()))
    assert len(load_dataset("cifar10").train_labels) == 15


def test_nothing_is_fetched_where_it_must_not(tmp_path, monkeypatch):
    monkeypatch.delenv("CIFAR10_DIR", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / project)
    assert "cifar10: expected its batches in --data-dir, CIFAR10_DIR or " in refusal(find_cifar10, None, False)


def test_nothing_leaves_the_folder(tmp_path, members):
    evil = {"../outside.bin": b"x", str(tmp_path / "absolute.bin"): b"x", f"{BINARY_FOLDER}/../../up.bin": b"x"}
    (tmp_path / "archive").write_bytes(packed(evil | members))
    unpack(tmp_path / "archive", tmp_path / "a/b")
    assert sorted(path.name for path in (tmp_path / "a").rglob("*.bin")) == sorted(f"{name}.bin" for name in BATCHES)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "archive", "packed"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_a_batch_that_is_no_plain_file(tmp_path, members, kind):
    (tmp_path / "archive").write_bytes(packed(members | {f"{BINARY_FOLDER}/test_batch.bin": None}, kind))
    assert refusal(unpack, tmp_path / "archive", tmp_path / "out").endswith("found no plain file")
    assert not (tmp_path / "out/test_batch.bin").exists()


def test_an_archive_that_is_none(tmp_path, members):
    path = tmp_path / "archive"
    whole = packed(members)
    del members[f"{BINARY_FOLDER}/data_batch_4.bin"]
    for content in (b"", b"no archive", whole[: len(whole) // 2], packed(members)):
        path.write_bytes(content)
        assert refusal(unpack, path, tmp_path / "out").startswith(f"{path}: expected the archive of CIFAR-10's batches")


def test_a_batch_that_is_too_large(tmp_path, monkeypatch, members):
    monkeypatch.setattr(cifar, "MAX_BATCH_BYTES", 100)
    (tmp_path / "archive").write_bytes(packed(members))
    assert refusal(unpack, tmp_path / "archive", tmp_path / "out").endswith("of up to 100 bytes, found 9219 bytes")
