"""Load by NVIDIA's perf_analyzer, which `make perf_analyzer` fetches.

An open loop gets a thread for each request of a second, 256 at most: with four, the default, perf_analyzer sends late
and hides the wait. Above saturation it still understates the wait.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.load.terms import MAX_IN_FLIGHT, Failed, LeftOut, Load, Measure, Sample, Target, arrivals_s, unmeasured

if TYPE_CHECKING:
    from export.equivalence import Images
    from serving.running import Server

TOOL = Path(__file__).parents[2] / ".perf_analyzer"
LARGEST_LOGITS = 4000  # bytes of an image's answer, 1,000 classes
WINDOWS = 3  # the minimum for a report
UNSTABLE = "Failed to obtain stable measurement"  # the spread has no limit here: the window is empty
LONGEST_WORDS = 400  # characters of output in an error
COMPUTE = ("Server Compute Input", "Server Compute Infer", "Server Compute Output")


def program() -> Path:
    path = TOOL / "bin" / "perf_analyzer"
    if path.is_file():
        return path
    if elsewhere := shutil.which("perf_analyzer"):
        return Path(elsewhere)
    raise Failed(f"{path}: expected NVIDIA's perf_analyzer, found no such file; make perf_analyzer fetches it")


def write_requests(path: Path, requests: Images, shape: Sequence[int] = ()) -> None:
    """uint8 requests; `shape` if the model leaves it open."""
    about = {"shape": list(shape)} if shape else {}
    data = [{"image": {"b64": base64.b64encode(each.tobytes()).decode()} | about} for each in requests]
    path.write_text(json.dumps({"data": data}))


def measurer(server: Server, target: Target, images: Images, folder: Path) -> Measure:
    """Images uint8 (n, C, H, W)."""
    import numpy as np

    url = server.grpc_url if target.protocol == "grpc" else server.http_url
    command = [str(program()), "-m", target.served_name, "-u", url, "-i", target.protocol]
    command += ["--shared-memory", target.shared_memory]
    requests, report, intervals = (folder / f"{target.served_name}.{kind}" for kind in ("json", "csv", "intervals"))
    whole = target.form.engine == "openvino"  # its dims include the batch

    def batches(load: Load) -> list[str]:
        if not whole:
            write_requests(requests, images)
            return ["-b", str(load.batch)]
        shape = (load.batch, *images.shape[1:])
        write_requests(requests, np.resize(images, (1, *shape)), shape)
        room = LARGEST_LOGITS * load.batch
        return ["--shape", f"image:{','.join(map(str, shape))}", "--output-shared-memory-size", str(room)]

    def measure(load: Load, seconds: float) -> Sample:
        if load.rate is None:
            what = ["--concurrency-range", f"{load.in_flight}:{load.in_flight}"]
        else:
            _write_intervals(intervals, load, seconds)
            threads = min(MAX_IN_FLIGHT, max(1, load.requests(1)))
            what = ["--request-intervals", str(intervals), "--max-threads", str(threads)]
        # Average the windows whatever their spread: the spread between rounds says more.
        how = ["-p", str(int(1000 * seconds / WINDOWS)), "-r", str(WINDOWS), "-s", "999"]
        _run([*command, "--input-data", str(requests), *batches(load), *what, *how], report)
        return _read(report, load.batch if whole else 1)

    return measure


def _write_intervals(path: Path, load: Load, seconds: float) -> None:
    """Microseconds before each request; perf_analyzer starts over after the last."""
    import numpy as np

    due_us = np.round(1e6 * arrivals_s(load, seconds))
    path.write_text("".join(f"{max(1, int(interval))}\n" for interval in np.diff(due_us, prepend=0)))


def _run(command: list[str], report: Path) -> None:
    inherited = [folder] if (folder := os.environ.get("LD_LIBRARY_PATH")) else []  # the driver's, in a container
    environment = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join([str(TOOL / "lib"), *inherited])}
    report.unlink(missing_ok=True)
    command = [*command, "-f", str(report), "--verbose-csv"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    words = " ".join(f"{done.stdout} {done.stderr}".split())
    if UNSTABLE in words:
        raise LeftOut("a window of perf_analyzer was without answers")
    if done.returncode or not report.is_file():
        raise unmeasured(f"perf_analyzer stopped with exit code {done.returncode}: {words[-LONGEST_WORDS:]}")


def _read(report: Path, images: int) -> Sample:
    """An inference has `images` images; the report's times are microseconds."""
    with report.open(newline="") as file:
        row = next(csv.DictReader(file))
    p50, p90, p95, p99 = (float(row[f"p{percent} latency"]) / 1000 for percent in (50, 90, 95, 99))
    queue_ms, compute_ms = float(row["Server Queue"]) / 1000, sum(float(row[name]) for name in COMPUTE) / 1000
    return Sample(images * float(row["Inferences/Second"]), p50, p90, p95, p99, queue_ms, compute_ms)
