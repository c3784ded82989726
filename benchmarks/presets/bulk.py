"""Runs ONNX Runtime and `vitbn bulk` in turns, then kills `vitbn bulk` twice and repeats its command.

Out as JSON: rates in rows a second of wall time, the memory of `vitbn bulk` in MB, and whether each row of the killed
run came exactly once.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil

from benchmarks.measure.devices import cores
from benchmarks.measure.measured_network import rewrite_checkpoint
from benchmarks.measure.result_file import Record, Row
from benchmarks.reporting.recorded_decorator import recorded

ROUNDS = 7
LOOP_S = 3.0  # duration of ONNX Runtime's timed loop, after a second of warm-up
MEMORY_INTERVAL_S = 0.25  # between readings of the memory, which take 4 ms each
BLOCK = 4096  # images that the input repeats


@click.command()
@click.option("--rows", type=click.IntRange(10_000), default=2_000_000, show_default=True)
@click.option("--model", default="vitbn-tiny", show_default=True, help="A shipped network, with all rewrites.")
@recorded()
def bulk(record: Record, rows: int, model: str) -> None:
    """Compare vitbn bulk with plain ONNX Runtime, watch its memory, kill it and count its rows."""
    with tempfile.TemporaryDirectory(prefix="bulk-") as folder:
        bench = BulkBench(Path(folder), rows, model)
        for name, measure in (("undisturbed", bench.compare), ("killed", bench.kill_twice)):
            row = measure()
            click.echo(f"{name}: " + ", ".join(f"{key} {value}" for key, value in row.items()))
            record.add({"model": model, "rows": rows, "run": name, **row})
        verdict = bench.verdict()
        click.echo(", ".join(f"{key} {value}" for key, value in verdict.items()))
        *others, last = record.rows
        record.update([*others, {**last, **verdict}])


class BulkBench:
    """The runs over one input file. Call `compare`, then `kill_twice`, then `verdict`: each needs the output before."""

    def __init__(self, folder: Path, rows: int, model: str) -> None:
        from export.publishing.sidecar import write_with_sidecars
        from models.catalog import shipped

        self._folder, self._rows = folder, rows
        self._model = folder / "model.onnx"
        write_with_sidecars(self._model, rewrite_checkpoint(shipped(model)).artifact)
        self._input = _write_images(folder, rows)
        os.sync()  # else the runs wait while the input is written back

    def compare(self) -> Row:
        """Medians of the rates, medians and ranges of the shares, and the highest memory of all rounds.

        `share_of_program` compares `vitbn bulk` with ONNX Runtime's program, both from start to end. ONNX Runtime's
        loop is compared with `vitbn bulk` after its start (`share_of_plain`), and from start to end (`whole_share`).
        """
        rounds = [self._round(number) for number in range(ROUNDS)]
        columns = {name: np.array([row[name] for row in rounds]) for name in rounds[0]}
        program, loop = columns["program_images_per_s"], columns["plain_images_per_s"]
        after_start, start_to_end = columns["images_per_s"], columns["whole_images_per_s"]
        shares = {
            "share_of_program": start_to_end / program,
            "share_of_plain": after_start / loop,
            "whole_share": start_to_end / loop,
        }
        return {
            "seconds": round(self._rows / float(np.median(start_to_end)), 2),
            **{name: round(float(np.median(rates))) for name, rates in columns.items() if name.endswith("_per_s")},
            **{name: round(float(np.median(share)), 3) for name, share in shares.items()},
            **{
                f"{name}_range": [round(float(end), 3) for end in (share.min(), share.max())]
                for name, share in shares.items()
            },
            **{name: round(float(peaks.max())) for name, peaks in columns.items() if name.endswith("_peak_mb")},
        }

    def _round(self, number: int) -> dict[str, float]:
        """Rates in images a second, and the peaks of all processes' memory in two parts of the run of `vitbn bulk`.

        ONNX Runtime: a program over the same file from start to end (`program`), and the mean of two loops over one
        batch in memory, before and after `vitbn bulk` (`plain`). `vitbn bulk`: after its start, and from start to end
        (`whole`).
        """
        program, loop_before = self._program(), self._loop()
        memory_mb, started = list[float](), time.monotonic()
        output = self._folder / ("undisturbed" if number == 0 else f"again-{number}")
        driver = self._start(output)
        while not _ends_within(driver, MEMORY_INTERVAL_S):
            memory_mb.append(_memory_mb(driver.pid))
        start_to_end = self._rows / (time.monotonic() - started)
        _check_exit_code(driver)
        quarter, half = len(memory_mb) // 4, len(memory_mb) // 2
        return {
            "program_images_per_s": program,
            "plain_images_per_s": (loop_before + self._loop()) / 2,
            "images_per_s": _rate_after_start(output),
            "whole_images_per_s": start_to_end,
            "second_quarter_peak_mb": max(memory_mb[quarter:half] or memory_mb),
            "second_half_peak_mb": max(memory_mb[half:-1] or memory_mb),
        }

    def _program(self) -> float:
        """Images a second of ONNX Runtime as a program, a process a core, from start to end."""
        command = [sys.executable, "-m", "benchmarks.load.bulk_baseline", str(self._model), str(self._input)]
        started = time.monotonic()
        processes = [subprocess.Popen([*command, str(index), str(cores())]) for index in range(cores())]
        codes = [process.wait() for process in processes]
        rate = self._rows / (time.monotonic() - started)
        if any(codes):
            raise ChildProcessError(f"benchmarks.load.bulk_baseline: expected exit codes 0, found {codes}")
        return rate

    def _loop(self) -> float:
        """Images a second of ONNX Runtime over one batch in memory, a process a core."""
        with multiprocessing.get_context("spawn").Pool(cores()) as pool:
            return sum(pool.map(_loop_on_one_thread, [str(self._model)] * cores(), chunksize=1))

    def kill_twice(self) -> Row:
        """Kills a worker after a quarter of the parts and the driver after half, then repeats the command."""
        output, parts = self._folder / "killed", len(_part_files(self._folder / "undisturbed"))
        driver = self._start(output)
        _wait_for_parts(output, max(1, parts // 4), driver)
        _workers(driver.pid)[0].kill()
        _wait_for_parts(output, max(2, parts // 2), driver)
        workers = _workers(driver.pid)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        psutil.wait_procs(workers, timeout=120)
        parts_at_the_kill = len(_part_files(output))
        _check_exit_code(resumed := self._start(output), wait_s=3600)
        return {"parts": parts, "parts_at_the_kill": parts_at_the_kill, "exit_code": resumed.returncode}

    def verdict(self) -> Row:
        """Whether the killed run has every id once, and the same bytes as the undisturbed run; and its errors."""
        import pyarrow.parquet as pq

        undisturbed, killed = (_part_files(self._folder / name) for name in ("undisturbed", "killed"))
        ids = set[int]()
        count = errors = 0
        for path in killed:
            table = pq.read_table(path, columns=["id", "error"])
            count, errors = count + len(table), errors + len(table) - table["error"].null_count
            ids.update(map(hash, table["id"].to_pylist()))
        same = [path.read_bytes() for path in undisturbed] == [path.read_bytes() for path in killed]
        return {"rows_once": count == len(ids) == self._rows, "same_bytes": same, "errors": errors}

    def _start(self, output: Path) -> subprocess.Popen[bytes]:
        part_rows = ["--part-rows", str(_part_rows(self._rows))]
        options = ["--output", str(output), "--model", str(self._model), *part_rows]
        command = [sys.executable, "-m", "clients.bulk.app", str(self._input), *options]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)


def _part_rows(rows: int) -> int:
    """Rows of a part: `vitbn bulk`'s default, or fewer, so that each process computes several parts.

    The rate after the start leaves out each process's first part.
    """
    from clients.bulk.planning import PART_ROWS

    return min(PART_ROWS, rows // (4 * cores()))


def _loop_on_one_thread(model: str) -> float:
    """Images a second of the ONNX file `model` in a loop over one batch."""
    from benchmarks.load.bulk_baseline import BATCH_SIZE, start_session

    session = start_session(model)
    batch = {"image": _digits()[:BATCH_SIZE]}
    end = time.perf_counter() + 1
    while time.perf_counter() < end:
        session.run(["logits"], batch)
    started, calls = time.perf_counter(), 0
    while (now := time.perf_counter()) < started + LOOP_S:
        session.run(["logits"], batch)
        calls += 1
    return calls * BATCH_SIZE / (now - started)


def _digits() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """scikit-learn's digits as uint8 (4096, 1, 28, 28), repeated."""
    from models.data import load_digits

    images = np.asarray(load_digits().train_images)
    return np.resize(images, (BLOCK, *images.shape[1:]))


def _write_images(folder: Path, rows: int) -> Path:
    """Writes an idx file of `rows` images: the digits, repeated."""
    digits, path = _digits(), folder / "rows-images-idx3-ubyte"
    with path.open("wb") as file:
        file.write(struct.pack(">4B3I", 0, 0, 8, 3, rows, 28, 28))
        for start in range(0, rows, BLOCK):
            file.write(digits[: min(BLOCK, rows - start)].tobytes())
    return path


def _part_files(output: Path) -> list[Path]:
    return sorted(output.glob("part-*.parquet"))


def _rate_after_start(output: Path) -> float:
    """Rows a second of all parts but each process's first, from the times at which the files appeared."""
    import pyarrow.parquet as pq

    ends = sorted((path.stat().st_mtime, path) for path in _part_files(output))
    rows = sum(pq.read_metadata(path).num_rows for _, path in ends[cores() :])
    return float(rows / (ends[-1][0] - ends[cores() - 1][0]))


def _workers(driver_pid: int) -> list[psutil.Process]:
    """The living processes that compute parts: the driver's grandchildren."""
    grandchildren = [worker for child in psutil.Process(driver_pid).children() for worker in child.children()]
    return [worker for worker in grandchildren if worker.status() != psutil.STATUS_ZOMBIE]


def _memory_mb(driver_pid: int) -> float:
    """Resident memory of the driver and its descendants; 0 after the driver's end. Shared pages count in each."""
    try:
        driver = psutil.Process(driver_pid)
        return 1e-6 * sum(int(process.memory_info().rss) for process in [driver, *driver.children(recursive=True)])
    except psutil.NoSuchProcess:
        return 0.0


def _wait_for_parts(output: Path, count: int, driver: subprocess.Popen[bytes]) -> None:
    """Waits until `output` has `count` parts. Raises ChildProcessError if the driver ends before."""
    while len(_part_files(output)) < count:
        if driver.poll() is not None:
            raise ChildProcessError(f"{output}: expected a run of at least {count} parts, found an earlier end")
        time.sleep(0.005)


def _ends_within(driver: subprocess.Popen[bytes], wait_s: float) -> bool:
    """Whether the driver ends within `wait_s`. Returns at the moment of its end: polling would lengthen the run."""
    descriptor = os.pidfd_open(driver.pid)
    try:
        return bool(select.select([descriptor], [], [], wait_s)[0])
    finally:
        os.close(descriptor)


def _check_exit_code(driver: subprocess.Popen[bytes], wait_s: float = 60) -> None:
    """Raises ChildProcessError unless the driver ends with exit code 0 within `wait_s`."""
    if code := driver.wait(wait_s):
        raise ChildProcessError(f"vitbn bulk: expected exit code 0, found {code}")
