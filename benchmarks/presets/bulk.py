"""Runs ONNX Runtime and vitbn bulk in turns, then vitbn bulk killed twice.

Out as JSON: rates, rows a second of wall time; the memory of vitbn bulk; whether each row came once despite the kills.
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
from benchmarks.measure.run import Record, Row
from benchmarks.reporting.recorded_command import recorded

ROUNDS = 7
PLAIN_S = 3.0  # of ONNX Runtime alone, after a second of warm-up
LOOK_S = 0.25  # between looks at the memory, of 4 ms each
BLOCK = 4096  # images of the repeated digits


@click.command()
@click.option("--rows", type=click.IntRange(10_000), default=2_000_000, show_default=True)
@click.option("--model", default="vitbn-tiny", show_default=True, help="A shipped network, with all rewrites.")
@recorded()
def bulk(record: Record, rows: int, model: str) -> None:
    """Compare vitbn bulk with plain ONNX Runtime, watch its memory, kill it and count its rows."""
    with tempfile.TemporaryDirectory(prefix="bulk-") as folder:
        bench = BulkBench(Path(folder), rows, model)
        for name, measure in (("undisturbed", bench.compared), ("killed", bench.killed)):
            row = measure()
            click.echo(f"{name}: " + ", ".join(f"{key} {value}" for key, value in row.items()))
            record.add({"model": model, "rows": rows, "run": name, **row})
        verdict = bench.verdict()
        click.echo(", ".join(f"{key} {value}" for key, value in verdict.items()))
        *others, last = record.rows
        record.update([*others, {**last, **verdict}])


class BulkBench:
    """Call `compared`, then `killed`, then `verdict`."""

    def __init__(self, folder: Path, rows: int, model: str) -> None:
        from export.graph import Form
        from export.pipeline import export_checkpoint
        from export.publishing.beside import write_beside
        from models.catalog import shipped

        self._folder, self._rows = folder, rows
        self._model = folder / "model.onnx"
        write_beside(self._model, export_checkpoint(shipped(model), Form("all")).artifact)
        self._input = _write_images(folder, rows)
        os.sync()  # else the runs wait while the input is written back

    def compared(self) -> Row:
        """Medians of the rounds, and the range of each share.

        ONNX Runtime runs in two ways: as a program over the same file from start to end (`program_images_per_s`), and
        as a loop over one batch in memory (`plain_images_per_s`), before and after each run of vitbn bulk.
        `share_of_program` compares both from start to end. The loop is compared with vitbn bulk after its start
        (`share_of_plain`), and from start to end (`whole_share`). Memory is the peak of all processes in the second
        quarter and in the second half, the highest of all runs.
        """
        columns = zip(*(self._round(number) for number in range(ROUNDS)), strict=True)
        program, plain, whole, later, quarters, halves = (np.array(each) for each in columns)
        rates = {
            "program_images_per_s": program,
            "plain_images_per_s": plain,
            "images_per_s": later,
            "whole_images_per_s": whole,
        }
        shares = {"share_of_program": whole / program, "share_of_plain": later / plain, "whole_share": whole / plain}
        return {
            "seconds": round(self._rows / float(np.median(whole)), 2),
            **{name: round(float(np.median(each))) for name, each in rates.items()},
            **{name: round(float(np.median(each)), 3) for name, each in shares.items()},
            **{
                f"{name}_range": [round(float(end), 3) for end in (each.min(), each.max())]
                for name, each in shares.items()
            },
            "second_quarter_peak_mb": round(max(quarters)),
            "second_half_peak_mb": round(max(halves)),
        }

    def _round(self, number: int) -> tuple[float, float, float, float, float, float]:
        """Four rates (program, loop, whole run, run after its start), memory in the second quarter and second half."""
        program, before = self._program(), self._plain()
        memory_mb, started = list[float](), time.monotonic()
        output = self._folder / ("undisturbed" if number == 0 else f"again-{number}")
        driver = self._start(output)
        while not _ended(driver, LOOK_S):
            memory_mb.append(_memory_mb(driver.pid))
        whole = self._rows / (time.monotonic() - started)
        _check_ended(driver)
        half = memory_mb[len(memory_mb) // 2 : -1] or memory_mb
        early = memory_mb[len(memory_mb) // 4 : len(memory_mb) // 2] or memory_mb
        plain = (before + self._plain()) / 2
        return program, plain, whole, _rate_after_start(output), max(early), max(half)

    def _program(self) -> float:
        command = [sys.executable, "-m", "benchmarks.load.plain_program", str(self._model), str(self._input)]
        started = time.monotonic()
        processes = [subprocess.Popen([*command, str(index), str(cores())]) for index in range(cores())]
        codes = [process.wait() for process in processes]
        rate = self._rows / (time.monotonic() - started)
        if any(codes):
            raise ChildProcessError(f"benchmarks.load.plain_program: expected exit codes 0, found {codes}")
        return rate

    def _plain(self) -> float:
        with multiprocessing.get_context("spawn").Pool(cores()) as pool:
            return sum(pool.map(_plain_rate, [str(self._model)] * cores(), chunksize=1))

    def killed(self) -> Row:
        """Kills a worker after a quarter of the parts and the driver after half, then repeats the command."""
        output, parts = self._folder / "killed", len(_answers(self._folder / "undisturbed"))
        driver = self._start(output)
        _wait_for_parts(output, max(1, parts // 4), driver)
        _workers(driver.pid)[0].kill()
        _wait_for_parts(output, max(2, parts // 2), driver)
        workers = _workers(driver.pid)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        psutil.wait_procs(workers, timeout=120)
        left = len(_answers(output))
        _check_ended(resumed := self._start(output), wait_s=3600)
        return {"parts": parts, "parts_at_the_kill": left, "exit_code": resumed.returncode}

    def verdict(self) -> Row:
        """Whether every id comes once, and both runs' files have the same bytes."""
        import pyarrow.parquet as pq

        whole, killed = (_answers(self._folder / name) for name in ("undisturbed", "killed"))
        ids = set[int]()
        count = errors = 0
        for path in killed:
            table = pq.read_table(path, columns=["id", "error"])
            count, errors = count + len(table), errors + len(table) - table["error"].null_count
            ids.update(hash(each) for each in table["id"].to_pylist())
        same = [path.read_bytes() for path in whole] == [path.read_bytes() for path in killed]
        return {"rows_once": count == len(ids) == self._rows, "same_bytes": same, "errors": errors}

    def _start(self, output: Path) -> subprocess.Popen[bytes]:
        part_rows = ["--part-rows", str(_part_rows(self._rows))]
        options = ["--output", str(output), "--model", str(self._model), *part_rows]
        command = [sys.executable, "-m", "clients.bulk.app", str(self._input), *options]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)


def _part_rows(rows: int) -> int:
    """Rows of a part: vitbn bulk's default, or fewer, since each process needs parts after its first."""
    from clients.bulk.planning import PART_ROWS

    return min(PART_ROWS, rows // (4 * cores()))


def _plain_rate(model: str) -> float:
    """Images a second in a loop over one batch, on one thread."""
    import onnxruntime as ort

    from clients.bulk.network import BATCH_SIZE

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
    batch = {"image": _digits()[:BATCH_SIZE]}
    end = time.perf_counter() + 1
    while time.perf_counter() < end:
        session.run(["logits"], batch)
    started, calls = time.perf_counter(), 0
    while (now := time.perf_counter()) < started + PLAIN_S:
        session.run(["logits"], batch)
        calls += 1
    return calls * BATCH_SIZE / (now - started)


def _digits() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """scikit-learn's digits as uint8 (4096, 1, 28, 28), repeated."""
    from models.data import load_digits

    images = np.asarray(load_digits().train_images)
    return np.resize(images, (BLOCK, *images.shape[1:]))


def _write_images(folder: Path, rows: int) -> Path:
    digits, path = _digits(), folder / "rows-images-idx3-ubyte"
    with path.open("wb") as file:
        file.write(struct.pack(">4B3I", 0, 0, 8, 3, rows, 28, 28))
        for start in range(0, rows, BLOCK):
            file.write(digits[: min(BLOCK, rows - start)].tobytes())
    return path


def _answers(output: Path) -> list[Path]:
    return sorted(output.glob("part-*.parquet"))


def _rate_after_start(output: Path) -> float:
    """Rows a second of the parts after each process's first, from the times at which the files appeared."""
    ends = sorted((path.stat().st_mtime, path) for path in _answers(output))
    rows = sum(_rows(path) for _, path in ends[cores() :])
    return rows / (ends[-1][0] - ends[cores() - 1][0])


def _rows(path: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def _workers(driver: int) -> list[psutil.Process]:
    """Living processes that do parts: the driver's grandchildren."""
    grandchildren = [each for child in psutil.Process(driver).children() for each in child.children()]
    return [each for each in grandchildren if each.status() != psutil.STATUS_ZOMBIE]


def _memory_mb(driver: int) -> float:
    """Resident memory of the driver and its processes, shared pages counted in each; 0 after its end."""
    try:
        process = psutil.Process(driver)
        return 1e-6 * sum(int(each.memory_info().rss) for each in [process, *process.children(recursive=True)])
    except psutil.NoSuchProcess:
        return 0.0


def _wait_for_parts(output: Path, count: int, driver: subprocess.Popen[bytes]) -> None:
    while len(_answers(output)) < count:
        if driver.poll() is not None:
            raise ChildProcessError(f"{output}: expected a run of at least {count} parts, found an earlier end")
        time.sleep(0.005)


def _ended(driver: subprocess.Popen[bytes], wait_s: float) -> bool:
    """Whether the driver ends within `wait_s`. Returns at the moment of its end, not at the next look."""
    descriptor = os.pidfd_open(driver.pid)
    try:
        return bool(select.select([descriptor], [], [], wait_s)[0])
    finally:
        os.close(descriptor)


def _check_ended(driver: subprocess.Popen[bytes], wait_s: float = 60) -> None:
    if code := driver.wait(wait_s):
        raise ChildProcessError(f"vitbn bulk: expected exit code 0, found {code}")
