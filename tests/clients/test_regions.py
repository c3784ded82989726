import errno
import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clients.preprocess import ClientError
from clients.server import regions as module
from clients.server.regions import PREFIX, Region

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 1, 28, 28), dtype=np.uint8)
SHM = Path("/dev/shm")

pytestmark = pytest.mark.skipif(not SHM.is_dir(), reason="shared memory is looked for in /dev/shm")


def left():
    return {path.name for path in SHM.glob(f"{PREFIX}{os.getpid()}-*")}


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    gc.collect()
    assert not left()


def test_images_and_logits_have_places_of_their_own():
    region = Region(rows=5, image_bytes=784, classes=10)
    logits = np.arange(50, dtype=np.float32).reshape(5, 10)
    region.write(IMAGES)
    assert np.isnan(region.read((5, 10))).all()  # no old answer
    content = SHM / region.name
    with content.open("r+b") as file:
        assert file.read(IMAGES.nbytes) == IMAGES.tobytes()
        file.seek(region.logits_offset)
        file.write(logits.tobytes())
    np.testing.assert_array_equal(region.read((5, 10)), logits)
    assert content.read_bytes()[: IMAGES.nbytes] == IMAGES.tobytes()
    assert content.stat().st_size >= region.size == region.logits_offset + logits.nbytes
    assert region.key == f"/{region.name}"
    assert content.stat().st_mode & 0o077 == 0
    region.write(IMAGES[:2])
    assert np.isnan(region.read((2, 10))).all()
    region.remove()


@pytest.mark.parametrize("shape", [(6, 10), (5, 11), (-1, 10), (2**40, 10)])
def test_a_shape_that_a_server_makes_up_reads_nothing_else(shape):
    region = Region(rows=5, image_bytes=784, classes=10)
    with pytest.raises((TypeError, ValueError)):
        region.read(shape)
    region.remove()


def test_no_two_have_the_same_name():
    many = [Region(1, 784, 10) for _ in range(20)]
    assert len({region.name for region in many}) == 20
    for region in many:
        region.remove()
        region.remove()


@pytest.mark.slow
def test_a_region_that_is_forgotten_or_was_removed_by_another_is_gone():
    name = Region(1, 784, 10).name
    gc.collect()
    assert name not in left()
    region = Region(1, 784, 10)
    (SHM / region.name).unlink()
    region.remove()


def test_a_full_memory_is_an_error_and_no_crash(monkeypatch):
    def full(descriptor, offset, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module.os, "posix_fallocate", full)
    with pytest.raises(ClientError, match=r"expected \d+ bytes of shared memory .*No space left"):
        Region(5, 784, 10)


ENDS = """
import os, signal, sys
from clients.server.regions import Region
region = Region(1, 784, 10)
print(region.name, flush=True)
end = sys.argv[1]
if end == "exception":
    raise KeyError("unexpected")
if end == "fork":
    if os.fork() == 0:
        sys.exit()
    os.wait()
    region.read((1, 10))
    print(os.path.exists(f"/dev/shm/{region.name}"))
if end == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("end", "exit_code"), [("exit", 0), ("exception", 1), ("fork", 0), ("kill", -9)])
def test_a_process_leaves_none_however_it_ends(end, exit_code):
    # Standard error ends with Python's resource tracker.
    child = subprocess.run([sys.executable, "-c", ENDS, end], capture_output=True, text=True, timeout=60, check=False)
    name, *rest = child.stdout.splitlines()
    assert child.returncode == exit_code
    assert name.startswith(PREFIX)
    assert not (SHM / name).exists()
    assert rest == (["True"] if end == "fork" else [])
    if end in ("exit", "fork"):
        assert child.stderr == ""
