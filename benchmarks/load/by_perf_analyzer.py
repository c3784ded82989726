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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.load.errors import Failed
from benchmarks.load.labels import served_name
from benchmarks.measure.workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.measure.candidate import Candidate
    from export.equivalence import Images
    from serving.local_server import Server

Text = Mapping[str, "NDArray[Any]"]  # inputs (1, tokens)

TOOL = Path(__file__).parents[2] / ".perf_analyzer"
LARGEST_LOGITS = 4000  # bytes of an image's answer, 1,000 classes
WINDOWS = 3  # the minimum for a report
UNSTABLE = "Failed to obtain stable measurement"  # our calls do not limit the spread, so this means an empty window
GAP = "a window of perf_analyzer was without answers"
LONGEST_WORDS = 400  # characters of output in an error
MAX_THREADS = 256
# Triton's messages for a full queue and for too long a wait.
REFUSALS = ("Exceeds maximum queue size", "Request timeout expired")
COMPUTE = ("Server Compute Input", "Server Compute Infer", "Server Compute Output")


def program() -> Path:
    path = TOOL / "bin" / "perf_analyzer"
    if path.is_file():
        return path
    if elsewhere := shutil.which("perf_analyzer"):
        return Path(elsewhere)
    raise Failed(f"{path}: expected NVIDIA's perf_analyzer, found no such file; make perf_analyzer fetches it")


def measure(
    server: Server, candidate: Candidate, workload: Workload, images: Images, seconds: float, folder: Path
) -> dict[str, float]:
    """Images a second, latencies and the server's times in ms. `images`: uint8 (n, C, H, W). Raises Failed."""
    name, batched = served_name(candidate, workload), candidate.engine == "openvino"  # its dims include the batch
    requests, intervals = (folder / f"{name}.{kind}" for kind in ("json", "intervals"))
    url, protocol = workload.address(server)
    words = ["-m", name, "-u", url, "-i", protocol, "--shared-memory", workload.shared_memory]
    words += _in_batches(requests, workload.batch, images, batched)
    if workload.rate is None:
        words += _closed_loop(workload.in_flight or 1)
    else:
        _write_intervals(intervals, workload, seconds)
        threads = min(MAX_THREADS, max(1, workload.requests(1)))
        words += ["--request-intervals", str(intervals), "--max-threads", str(threads)]
    figures = _figures(words, seconds, folder / f"{name}.csv")
    return {"images_per_s": (workload.batch if batched else 1) * figures.pop("inferences_per_s"), **figures}


def measure_texts(
    server: Server,
    model: str,
    texts: Sequence[Mapping[str, NDArray[Any]]],
    in_flight: int,
    seconds: float,
    folder: Path,
) -> dict[str, float]:
    """Sends a text a request over gRPC, each with its length. Raises Failed."""
    requests = folder / f"{model}.json"
    data = [
        {name: {"content": array[0].tolist(), "shape": [array.shape[1]]} for name, array in text.items()}
        for text in texts
    ]
    requests.write_text(json.dumps({"data": data}))
    words = ["-m", model, "-u", server.grpc_url, "-i", "grpc", "--input-data", str(requests), *_closed_loop(in_flight)]
    figures = _figures(words, seconds, folder / f"{model}.csv")
    return {"texts_per_s": figures.pop("inferences_per_s"), **figures}


def _closed_loop(in_flight: int) -> list[str]:
    return ["--concurrency-range", f"{in_flight}:{in_flight}"]


def _figures(words: list[str], seconds: float, report: Path) -> dict[str, float]:
    # Average the windows whatever their spread: the spread between rounds says more.
    windows = ["-p", str(int(1000 * seconds / WINDOWS)), "-r", str(WINDOWS), "-s", "999"]
    _run([str(program()), *words, *windows], report)
    return _read(report)


def _in_batches(requests: Path, batch: int, images: Images, batched: bool) -> list[str]:
    """Writes the requests and returns the options for them; `batched`: the model's open shape includes the batch."""
    import numpy as np

    shape = (batch, *images.shape[1:])
    about = {"shape": shape} if batched else {}
    contents = np.resize(images, (1, *shape)) if batched else images
    data = [{"image": {"b64": base64.b64encode(each.tobytes()).decode(), **about}} for each in contents]
    requests.write_text(json.dumps({"data": data}))
    given = ["--input-data", str(requests)]
    if not batched:
        return [*given, "-b", str(batch)]
    return [
        *given,
        *("--shape", f"image:{','.join(map(str, shape))}"),
        *("--output-shared-memory-size", str(LARGEST_LOGITS * batch)),
    ]


def _write_intervals(path: Path, workload: Workload, seconds: float) -> None:
    """Microseconds before each request; perf_analyzer starts over after the last."""
    import numpy as np

    due_us = np.round(1e6 * workload.due_s(seconds))
    path.write_text("".join(f"{max(1, int(interval))}\n" for interval in np.diff(due_us, prepend=0)))


def _run(command: list[str], report: Path) -> None:
    inherited = [folder] if (folder := os.environ.get("LD_LIBRARY_PATH")) else []  # the driver's, in a container
    environment = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join([str(TOOL / "lib"), *inherited])}
    report.unlink(missing_ok=True)
    command = [*command, "-f", str(report), "--verbose-csv"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    words = " ".join(f"{done.stdout} {done.stderr}".split())
    if UNSTABLE in words:
        raise Failed(GAP)
    if done.returncode or not report.is_file():
        if refusal := next((each for each in REFUSALS if each in words), None):
            raise Failed(f"the server refused requests: {refusal}")
        raise Failed(f"perf_analyzer stopped with exit code {done.returncode}: {words[-LONGEST_WORDS:]}")


def _read(report: Path) -> dict[str, float]:
    """The figures of a report, whose times are microseconds."""
    with report.open(newline="") as file:
        row = next(csv.DictReader(file))
    return {
        "inferences_per_s": float(row["Inferences/Second"]),
        **{f"p{percent}_ms": float(row[f"p{percent} latency"]) / 1000 for percent in (50, 90, 95, 99)},
        "server_queue_ms": float(row["Server Queue"]) / 1000,
        "server_compute_ms": sum(float(row[name]) for name in COMPUTE) / 1000,
    }
