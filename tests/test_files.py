"""A file is there whole or not at all, and a kill leaves nothing beside it."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from common import files
from common.files import swept_folder, write_atomically

KILLED = """
import os, signal, sys
from pathlib import Path
from common import files
files.os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
files.write_atomically(Path(sys.argv[1]), bytes(100_000))
"""


@pytest.fixture(params=["unnamed", "named"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In a folder whose file system has files without a name, and in one that has not."""
    if request.param == "named":
        real = os.open

        def without(name: object, flags: int, *more: object) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), str(name))
            return real(name, flags, *more)

        monkeypatch.setattr(files.os, "open", without)
    return tmp_path / "deep" / "run.json"


def test_a_file_is_replaced_completely_and_others_may_read_it(path: Path) -> None:
    for content in (b"one", b"two"):
        write_atomically(path, content)
        assert path.read_bytes() == content
        assert path.stat().st_mode & 0o777 == 0o644
        assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_full_disk_leaves_the_old_file_and_no_temporary_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_an_error_names_the_file_that_was_asked_for(path: Path) -> None:
    path.parent.mkdir()
    with pytest.raises(OSError, match="File name too long") as raised:
        write_atomically(path.with_name("n" * 250), b"")  # the name beside it is longer
    assert raised.value.filename == str(path.with_name("n" * 250))
    assert not [*path.parent.iterdir()]


def test_a_kill_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(b"old")
    killed = subprocess.run([sys.executable, "-c", KILLED, path], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["run.json"]


def test_a_folder_of_a_dead_process_is_removed(tmp_path: Path) -> None:
    """Of a living process and of another prefix none is."""
    dead, other = tmp_path / "keys-dead", tmp_path / "others"
    for folder in (dead, other):
        folder.mkdir()
        (folder / "keys").touch()
    with swept_folder(tmp_path, "keys-") as living, swept_folder(tmp_path, "keys-") as second:
        assert {*tmp_path.iterdir()} == {other, living, second}
    assert [*tmp_path.iterdir()] == [other]
