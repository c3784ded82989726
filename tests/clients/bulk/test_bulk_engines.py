import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from commands import told
from idx_files import idx_bytes

from clients.bulk.app import INTERRUPTED, _prepare_job, bulk
from clients.bulk.by_processes import ATTEMPTS
from clients.bulk.job_manifest import parts_to_do
from clients.bulk.scoring import classify_part

PARTS, ROWS = 300, 100  # many: the driver must not end before it is killed


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "x-images-idx3-ubyte"
    path.write_bytes(idx_bytes(np.random.default_rng(3).integers(0, 256, (PARTS * ROWS, 28, 28), np.uint8)))
    return path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, rows, network) -> dict[str, bytes]:
    output = tmp_path_factory.mktemp("undisturbed")
    job, target = _prepare_job((str(rows),), str(output), network, "image", "id", ROWS)
    for part in list(parts_to_do(target, job, (0, 1))):
        classify_part(job, part)
    assert len(target.finished_parts()) == PARTS
    return answers(output)


def answers(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in output.glob("part-*")}


def command(rows: Path, output: Path, network: Path, engine: tuple[str, str] = ("--processes", "2")) -> list[str]:
    options = ["--output", str(output), "--model", str(network), "--part-rows", str(ROWS), *engine]
    return [sys.executable, "-m", "clients.bulk.app", str(rows), *options]


def wait_for_parts(output: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(list(output.glob("part-*"))) < count:
        assert time.monotonic() < deadline, "no part in time"
        time.sleep(0.002)


@pytest.mark.slow
def test_killed_worker_and_killed_driver(tmp_path, rows, network, undisturbed):
    output = tmp_path / "out"
    driver = subprocess.Popen(command(rows, output, network), stderr=subprocess.PIPE, start_new_session=True)
    wait_for_parts(output, 1)
    workers = [worker for child in psutil.Process(driver.pid).children() for worker in child.children()]
    workers[0].kill()
    wait_for_parts(output, len(list(output.glob("part-*"))) + 5)
    os.kill(driver.pid, signal.SIGKILL)
    driver.communicate()
    assert not psutil.wait_procs(workers, timeout=30)[1]  # they end by themselves
    hearing = ["env", "--default-signal=HUP", *command(rows, output, network)]  # also under nohup
    driver = subprocess.Popen(hearing, stderr=subprocess.PIPE, text=True, start_new_session=True)
    wait_for_parts(output, len(list(output.glob("part-*"))) + 5)
    driver.send_signal(signal.SIGHUP)
    assert driver.communicate()[1].splitlines()[-1] == "Interrupted: the same command goes on"
    assert driver.returncode == INTERRUPTED
    before = answers(output)
    assert 5 < len(before) < PARTS  # else this proves nothing
    assert before.items() <= undisturbed.items()
    done = subprocess.run(command(rows, output, network), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert answers(output) == undisturbed
    assert f"{PARTS - len(before)} of {PARTS - len(before)} parts" in done.stderr
    assert "tried again" not in done.stderr


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("ulimit -n 16", "Error: Too many open files"), ("TMPDIR={long}", "expected a shorter path for sockets, found ")],
)
def test_a_machine_without_room_for_workers_is_no_traceback(tmp_path, rows, network, limit, expected):
    (long := tmp_path / ("n" * 100)).mkdir()
    words = ["bash", "-c", f'{limit.format(long=long)}; export TMPDIR; exec "$@"', "bash"]
    many = ("--processes", "16")
    done = subprocess.run([*words, *command(rows, tmp_path / "out", network, many)], capture_output=True, text=True)
    assert done.returncode == 1
    assert expected in done.stderr.splitlines()[-1]
    assert "AttributeError" not in done.stderr


START = """
import signal
from multiprocessing.forkserver import _forkserver
from pathlib import Path
from clients.bulk import fork_server

fork_server.start()
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(Path(f"/proc/{_forkserver._forkserver_pid}/status").read_text())
"""


def test_ctrl_c_waits_while_the_fork_server_imports():
    mask, *lines = subprocess.check_output([sys.executable, "-c", START], text=True).splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert mask == "set()"
    assert int(status["SigBlk"], 16) >> (signal.SIGINT - 1) & 1


@pytest.mark.slow
def test_parts_that_fail_are_tried_again_and_named(tmp_path, rows, network):
    copy = tmp_path / rows.name
    copy.write_bytes(rows.read_bytes())
    output = tmp_path / "out"
    _prepare_job((str(copy),), str(output), network, "image", "id", PARTS * ROWS)
    copy.unlink()
    arguments = [*command(copy, output, network)[3:], "--part-rows", str(PARTS * ROWS)]
    code, printed = told(bulk, *arguments)
    assert (code, printed.count(f"Note: part 0 is tried again: {copy}: No such file")) == (1, ATTEMPTS - 1)
    assert f"Error: part 0: {copy}: No such file or directory\n" in printed
    assert not list(output.glob("part-*"))


@pytest.mark.slow
def test_ray_gives_the_same_files(tmp_path, rows, network, undisturbed):
    pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")
    output = tmp_path / "out"
    asked = command(rows, output, network, ("--engine", "ray"))
    done = subprocess.run(asked, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert answers(output) == undisturbed
