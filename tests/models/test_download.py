import hashlib

import pytest

from models.data.dataset import DataError
from models.data.download import download

BYTES = bytes(range(24))
OTHERWISE = "Put it in a folder"
CHECKSUM = {"part": "md5:" + hashlib.md5(BYTES).hexdigest()}


@pytest.fixture
def mirror(serve):
    """(base URL, requests)."""
    return serve({"/good/part": BYTES, "/bad/part": b"a page that asks to log in"})


@pytest.mark.parametrize("first", ["/absent/", "/bad/"])
def test_second_mirror_and_a_bar(tmp_path, mirror, capsys, first):
    url, requests = mirror
    download(CHECKSUM, (url + first, url + "/good/"), tmp_path, OTHERWISE)
    assert [path.name for path in tmp_path.iterdir()] == ["part"]
    assert (tmp_path / "part").read_bytes() == BYTES
    assert requests == [first + "part", "/good/part"]
    assert "100%" in capsys.readouterr().err


def test_the_first_mirror_is_enough_and_asked_again_for_what_is_damaged(tmp_path, mirror):
    url, requests = mirror
    for _ in range(2):
        download(CHECKSUM, (url + "/good/", url + "/absent/"), tmp_path, OTHERWISE)
    assert requests == ["/good/part"]
    (tmp_path / "part").write_bytes(BYTES[:-1])
    download(CHECKSUM, (url + "/good/",), tmp_path, OTHERWISE)
    assert (tmp_path / "part").read_bytes() == BYTES


def test_wrong_checksum_leaves_nothing(tmp_path, mirror):
    with pytest.raises(DataError, match=r"part: expected it from a mirror, found .*: MD5 hash .* does not match the"):
        download(CHECKSUM, (mirror[0] + "/bad/",), tmp_path, OTHERWISE)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_no_fault_of_the_mirror(tmp_path, mirror):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=f"^{tmp_path}/file/part: expected to write it, found .*Not a directory"):
        download(CHECKSUM, (mirror[0] + "/good/",), tmp_path / "file", OTHERWISE)


def test_offline_says_what_to_do(tmp_path):
    nobody = "http://127.0.0.1:1/"  # nothing listens there
    with pytest.raises(DataError) as refused:
        download(CHECKSUM, (nobody, nobody), tmp_path, OTHERWISE)
    message = str(refused.value)
    assert message.count(f"{nobody}: ConnectionError") == 2
    assert message.endswith(f"Offline? {OTHERWISE}")
    assert "\n" not in message
