"""The runs of benchmarks/bulk.py: ONNX Runtime alone, vitbn bulk undisturbed, and vitbn bulk killed twice.

Rates are rows a second of wall time; those of `vitbn bulk` include the start of its processes.
"""

from __future__ import annotations

import multiprocessing
import resource
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.measure.machine import cores

Row = dict[str, Any]

PLAIN_S = 5.0  # of ONNX Runtime alone, after a second of warm-up
LOOK_S = 0.2  # between looks at the memory
BLOCK = 4096  # images of the repeated digits


class BulkBench:
    """An input and a model in `folder`; call plain, undisturbed and killed in this order."""

    def __init__(self, folder: Path, rows: int, model: str, form: str) -> None:
        from export.pipeline import Destination, ExportOptions, export_checkpoint
        from models.catalog import shipped

        self._folder, self._rows = folder, rows
        self._model = folder / "model.onnx"
        export_checkpoint(shipped(model), ExportOptions(Destination(output=self._model), optimize=True))
        self._input = _write_idx(folder, rows) if form == "idx" else _write_parquet(folder, rows)

    def plain(self) -> Row:
        """In one process, then in a process per core at once."""
        ((alone, _),) = self._plain(1)
        together = self._plain(cores())
        self._plain_rate = sum(rate for rate, _ in together)
        self._plain_processor_us = float(np.mean([each for _, each in together]))
        return {
            "one_core_images_per_s": round(alone),
            "all_cores_images_per_s": round(self._plain_rate),
            "processor_us_per_image": round(self._plain_processor_us, 3),
        }

    def _plain(self, processes: int) -> list[tuple[float, float]]:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            return pool.map(_plain_rate, [str(self._model)] * processes, chunksize=1)

    def undisturbed(self) -> Row:
        """The rate, and the peak memory of all processes in the second quarter and the second half of the run."""
        output, memory_mb = self._folder / "undisturbed", list[float]()
        started, before_s = time.monotonic(), _processor_s()
        driver = self._start(output)
        while driver.poll() is None:
            memory_mb.append(_memory_mb(driver.pid))
            time.sleep(LOOK_S)
        seconds = time.monotonic() - started
        _check_ended(driver)
        rate, processor_us = self._rows / seconds, 1e6 * (_processor_s() - before_s) / self._rows
        half = memory_mb[len(memory_mb) // 2 : -1] or memory_mb
        early = memory_mb[len(memory_mb) // 4 : len(memory_mb) // 2] or memory_mb
        return {
            "seconds": round(seconds, 2),
            "images_per_s": round(rate),
            "share_of_plain": round(rate / self._plain_rate, 3),
            "processor_us_per_image": round(processor_us, 3),
            "share_of_plain_by_processor_time": round(self._plain_processor_us / processor_us, 3),
            "second_quarter_peak_mb": round(max(early)),
            "second_half_peak_mb": round(max(half)),
        }

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
        return {
            "rows_once": count == len(ids) == self._rows,
            "same_bytes": same,
            "errors": errors,
        }

    def _start(self, output: Path) -> subprocess.Popen[bytes]:
        options = ["--output", str(output), "--model", str(self._model)]
        command = [sys.executable, "-m", "clients.bulk.app", str(self._input), *options]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)


def _processor_s() -> float:
    """Of all ended child processes; unlike a rate it does not depend on other load."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _plain_rate(model: str) -> tuple[float, float]:
    """Images/s, and µs of processor time per image."""
    import onnxruntime as ort

    from clients.bulk.network import BATCH_SIZE

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(model, options, ["CPUExecutionProvider"])
    batch = {"image": _digits()[:BATCH_SIZE]}
    end = time.perf_counter() + 1
    while time.perf_counter() < end:
        session.run(["logits"], batch)
    started, calls, before_s = time.perf_counter(), 0, time.process_time()
    while (now := time.perf_counter()) < started + PLAIN_S:
        session.run(["logits"], batch)
        calls += 1
    images = calls * BATCH_SIZE
    return images / (now - started), 1e6 * (time.process_time() - before_s) / images


def _digits() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """scikit-learn's digits as uint8 (4096, 1, 28, 28), repeated."""
    from models.data import load_digits

    images = np.asarray(load_digits().train_images)
    return np.resize(images, (BLOCK, *images.shape[1:]))


def _write_idx(folder: Path, rows: int) -> Path:
    digits, path = _digits(), folder / "rows-images-idx3-ubyte"
    with path.open("wb") as file:
        file.write(struct.pack(">4B3I", 0, 0, 8, 3, rows, 28, 28))
        for start in range(0, rows, BLOCK):
            file.write(digits[: min(BLOCK, rows - start)].tobytes())
    return path


def _write_parquet(folder: Path, rows: int) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "rows.parquet"
    pixels = [each.tobytes() for each in _digits()]
    schema = pa.schema([("id", pa.int64()), ("image", pa.binary(784))])
    with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for start in range(0, rows, BLOCK):
            count = min(BLOCK, rows - start)
            columns = [pa.array(range(start, start + count)), pa.array(pixels[:count], pa.binary(784))]
            writer.write_table(pa.table(columns, schema))
    return path


def _answers(output: Path) -> list[Path]:
    return sorted(output.glob("part-*.parquet"))


def _workers(driver: int) -> list[psutil.Process]:
    """Leaves out multiprocessing's own helper."""
    living = [each for each in psutil.Process(driver).children() if each.status() != psutil.STATUS_ZOMBIE]
    return [each for each in living if "spawn_main" in " ".join(each.cmdline())]


def _memory_mb(driver: int) -> float:
    """Resident memory of the driver and its processes; 0 after its end."""
    try:
        process = psutil.Process(driver)
        return 1e-6 * sum(int(each.memory_info().rss) for each in [process, *process.children()])
    except psutil.NoSuchProcess:
        return 0.0


def _wait_for_parts(output: Path, count: int, driver: subprocess.Popen[bytes]) -> None:
    while len(_answers(output)) < count:
        if driver.poll() is not None:
            raise RuntimeError(f"{output}: expected a run of {count} parts and more, found that it ended before")
        time.sleep(0.005)


def _check_ended(driver: subprocess.Popen[bytes], wait_s: float = 60) -> None:
    if code := driver.wait(wait_s):
        raise RuntimeError(f"vitbn bulk: expected exit code 0, found {code}")
