import gzip
import hashlib
import struct
from dataclasses import replace

import numpy as np
import pooch
import pytest

from models.data import (
    DATASETS,
    DataError,
    find_idx,
    load_dataset,
    load_idx_part,
    mnist,
)
from models.data.mnist import read_idx

BYTES = bytes(range(24))


def idx(content=BYTES, shape=(2, 3, 4), magic=b"\x00\x00\x08"):
    return magic + struct.pack(f">B{len(shape)}I", len(shape), *shape) + content


def refusal(path):
    with pytest.raises(DataError) as refused:
        read_idx(path, 2)
    message = str(refused.value)
    assert message.startswith(f"{path}: expected ")
    assert "\n" not in message
    return message


def write(path, content):
    path.write_bytes(content)
    return path


def write_mnist(folder, train=3, test=2, train_labels=3):
    parts = {"train-images-idx3-ubyte.gz": (train, 2, 2), "t10k-images-idx3-ubyte": (test, 2, 2)}
    parts |= {"train-labels-idx1-ubyte": (train_labels,), "t10k-labels-idx1-ubyte.gz": (test,)}
    for name, shape in parts.items():
        content = idx(bytes(int(np.prod(shape))), shape)
        write(folder / name, gzip.compress(content) if name.endswith(".gz") else content)
    return folder


def test_digits_never_change(digits):
    parts = (digits.train_images, digits.train_labels, digits.test_images, digits.test_labels)
    assert [(part.shape, part.dtype) for part in parts] == [
        *(((1438, 1, 28, 28), np.uint8), ((1438,), np.int64)),
        *(((359, 1, 28, 28), np.uint8), ((359,), np.int64)),
    ]
    checksum = hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
    assert checksum == "95b8fbbd6af30ca1254d573bfc0acd9e0d7342575c76b25fcfb414f08517debf"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"P5 28 28", "found 50352032"),
        (gzip.compress(idx())[:-1], "Compressed file ended before the end-of-stream marker was reached"),
        (idx(b"", (2**31, 2**13, 4)), f"expected at most {2**30} bytes, found {2**46} in the header"),
    ],
    ids=["magic", "half", "large"],
)
def test_another_file_than_the_header_says(tmp_path, content, said):
    """tests/clients/test_idx.py has the other faults of the one reader."""
    assert refusal(write(tmp_path / "part", content)).endswith(said)
    refusal(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "labels"), [("mnist", ("0", "9", "ink")), ("fashion-mnist", ("T-shirt/top", "Ankle boot", "photo"))]
)
def test_mnist_and_garments_gzipped_or_not(tmp_path, name, labels):
    dataset = load_dataset(name, write_mnist(tmp_path))
    assert dataset.train_images.shape == (3, 1, 2, 2)
    assert dataset.test_images.shape == (2, 1, 2, 2)
    assert dataset.train_labels.dtype == dataset.test_labels.dtype == np.int64
    assert (dataset.labels[0], dataset.labels[-1], dataset.preprocessing) == labels


@pytest.mark.parametrize(
    ("counts", "part", "content", "said"),
    [
        ({}, "t10k-labels-idx1-ubyte.gz", None, r"t10k-labels-idx1-ubyte\.gz \(or without \.gz\), found no such file"),
        ({"train": 3, "train_labels": 2}, None, None, r"train images .* as many labels, found \(3, 2, 2\) and \(2,\)"),
        ({"train": 0, "train_labels": 0}, None, None, r"train images .* as many labels, found \(0, 2, 2\) and \(0,\)"),
        ({}, "t10k-images-idx3-ubyte", idx(bytes(12), (2, 3, 2)), r"shape, found \(1, 2, 2\) and \(1, 3, 2\)"),
    ],
    ids=["a part missing", "fewer labels", "nothing", "two shapes"],
)
def test_parts_of_mnist_that_do_not_fit_together(tmp_path, counts, part, content, said):
    write_mnist(tmp_path, **counts)
    if part:
        (tmp_path / part).unlink()
    if content:
        write(tmp_path / part, content)
    with pytest.raises(DataError, match=said):
        load_dataset("mnist", tmp_path)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "emnist-digits"])
def test_a_label_without_a_class(tmp_path, name):
    write_emnist(tmp_path) if name == "emnist-digits" else write_mnist(tmp_path)
    path = next(tmp_path.glob("*train-labels*"))
    labels = read_idx(path, 0)
    write(path, idx(bytes([0, 37, 9][: len(labels)]), labels.shape))
    with pytest.raises(DataError, match=f"{path.name}: expected labels from 0 to 9, found 37"):
        load_dataset(name, tmp_path)


def test_real_mnist(mnist_dir):
    dataset = load_dataset("mnist", mnist_dir)
    assert dataset.train_images.shape == (60000, 1, 28, 28)
    assert dataset.test_images.shape == (10000, 1, 28, 28)
    np.testing.assert_array_equal(np.bincount(dataset.test_labels)[:3], [980, 1135, 1032])


def test_the_garments_of_debian_are_found_and_are_the_published_ones(fashion_mnist_dir, monkeypatch):
    """Debian compresses them anew: the decompressed bytes are compared."""
    garments = replace(mnist.IDX_SETS["fashion-mnist"], installed=fashion_mnist_dir)
    monkeypatch.setitem(mnist.IDX_SETS, "fashion-mnist", garments)
    monkeypatch.delenv("FASHION_MNIST_DIR", raising=False)
    assert find_idx("fashion-mnist", None) == fashion_mnist_dir
    dataset = load_dataset("fashion-mnist")
    assert (dataset.train_images.shape, dataset.test_images.shape) == ((60000, 1, 28, 28), (10000, 1, 28, 28))
    for labels in (dataset.train_labels, dataset.test_labels):
        np.testing.assert_array_equal(np.bincount(labels), [len(labels) / 10] * 10)


def test_other_garments_where_debian_puts_them(tmp_path, monkeypatch):
    garments = replace(mnist.IDX_SETS["fashion-mnist"], installed=write_mnist(tmp_path))
    monkeypatch.setitem(mnist.IDX_SETS, "fashion-mnist", garments)
    monkeypatch.delenv("FASHION_MNIST_DIR", raising=False)
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: expected sha256 c59f468a.* once decompressed"):
        load_dataset("fashion-mnist")


def write_emnist(folder, parts=("train", "test")):
    """Images of 2 rows and 3 columns, stored by column."""
    for part in parts:
        upright = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
        write(
            folder / f"emnist-digits-{part}-images-idx3-ubyte.gz",
            gzip.compress(idx(upright.swapaxes(1, 2).tobytes(), (2, 3, 2))),
        )
        write(folder / f"emnist-digits-{part}-labels-idx1-ubyte", idx(bytes([7, 1]), (2,)))
    return folder


def test_emnist_is_turned_upright(tmp_path):
    dataset = load_dataset("emnist-digits", write_emnist(tmp_path))
    for images, labels in ((dataset.train_images, dataset.train_labels), (dataset.test_images, dataset.test_labels)):
        np.testing.assert_array_equal(images, np.arange(12).reshape(2, 1, 2, 3))
        np.testing.assert_array_equal(labels, [7, 1])
        assert (images.dtype, labels.dtype) == (np.uint8, np.int64)
    assert dataset.name == "emnist-digits"


def test_one_part_of_emnist_is_enough_for_itself(tmp_path):
    images, _ = load_idx_part("emnist-digits", write_emnist(tmp_path, parts=["test"]), "test")
    assert images.shape == (2, 1, 2, 3)
    with pytest.raises(DataError, match=r"expected emnist-digits-train-images-idx3-ubyte\.gz \(or without \.gz\)"):
        load_dataset("emnist-digits", tmp_path)


def test_unknown_dataset():
    wanted = f"expected one of {', '.join(DATASETS)}, or a folder of pictures, found"
    with pytest.raises(DataError, match=f"^cifar: {wanted} no such folder$"):
        load_dataset("cifar")
    with pytest.raises(DataError, match=f"^{__file__}: {wanted} a file$"):
        load_dataset(__file__)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(pooch, "os_cache", lambda project: tmp_path / project)


@pytest.fixture
def nothing_installed(tmp_path, monkeypatch):
    for name, files in mnist.IDX_SETS.items():
        monkeypatch.setitem(mnist.IDX_SETS, name, replace(files, installed=tmp_path / "installed"))
        monkeypatch.delenv(files.variable, raising=False)


@pytest.fixture(params=mnist.IDX_SETS)
def source(request, nothing_installed):
    return request.param, mnist.IDX_SETS[request.param]


def test_named_folder_comes_before_the_environment(source, tmp_path, monkeypatch):
    name, files = source
    monkeypatch.setenv(files.variable, str(tmp_path / "environment"))
    assert find_idx(name, tmp_path / "named") == tmp_path / "named"
    assert find_idx(name, None) == tmp_path / "environment"


@pytest.mark.parametrize("content", [None, ""])
def test_cache_is_the_last_resort(source, tmp_path, monkeypatch, content):
    name, files = source
    if content is not None:
        monkeypatch.setenv(files.variable, content)
    calls = []
    monkeypatch.setattr(mnist, "download", lambda *arguments: calls.append(arguments))
    if name == "emnist-digits":
        with pytest.raises(DataError, match=r"emnist-digits: expected a folder with .* in --data-dir or EMNIST_DIR"):
            find_idx(name, None)
        return
    assert find_idx(name, None) == tmp_path / "vitbn" / name
    otherwise = f"Put its four idx files in a folder: --data-dir DIR or {files.variable}"
    otherwise += ", or on Debian: apt-get install dataset-fashion-mnist" if name == "fashion-mnist" else ""
    assert calls == [(files.checksums, files.mirrors, tmp_path / "vitbn" / name, otherwise)]
    assert set(files.checksums) == set(files.parts.values())


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_nothing_is_fetched_where_it_must_not(name, tmp_path, nothing_installed):
    files = mnist.IDX_SETS[name]
    said = f"{name}: expected its four idx files in --data-dir, {files.variable} or .*, found"
    with pytest.raises(DataError, match=said):
        find_idx(name, None, fetch=False)
    cache = tmp_path / "vitbn" / name
    cache.mkdir(parents=True)
    for file in files.checksums:
        (cache / file).touch()
    assert find_idx(name, None, fetch=False) == cache
