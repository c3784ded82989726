"""Load by NVIDIA's perf_analyzer, which `make perf_analyzer` fetches.

An open loop gets a thread for each request of a second, 256 at most. With its default of four threads perf_analyzer
sends late and hides the wait. Above saturation it understates the wait even so.
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

from benchmarks.load.published_candidates import Failed
from benchmarks.measure.workload_settings import Workload, served_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.measure.candidate import Candidate
    from export.compare_logits import Images
    from serving.local_server import Server

TOOL = Path(__file__).parents[2] / ".perf_analyzer"
LARGEST_LOGITS = 4000  # bytes of the logits of an image, for 1,000 classes
WINDOWS = 3  # the fewest of a report
UNSTABLE = "Failed to obtain stable measurement"  # our calls allow any spread, so it means a window without answers
GAP = "a window of perf_analyzer was without answers"
LONGEST_OUTPUT = 400  # characters of perf_analyzer's output in an error
MAX_THREADS = 256
# Triton's messages when the queue is full, and when a request has waited too long.
REFUSALS = ("Exceeds maximum queue size", "Request timeout expired")
COMPUTE = ("Server Compute Input", "Server Compute Infer", "Server Compute Output")


def program() -> Path:
    """The path of perf_analyzer. Raises Failed if it is not installed."""
    path = TOOL / "bin" / "perf_analyzer"
    if path.is_file():
        return path
    if elsewhere := shutil.which("perf_analyzer"):
        return Path(elsewhere)
    raise Failed(f"{path}: expected NVIDIA's perf_analyzer, found no such file; make perf_analyzer fetches it")


def measure(
    server: Server, candidate: Candidate, workload: Workload, images: Images, seconds: float, folder: Path
) -> dict[str, float]:
    """Images a second, latencies and the server's times in ms. Raises Failed.

    `images`: uint8 (n, C, H, W). `folder`: for the files of perf_analyzer.
    """
    name = served_name(candidate, workload)
    has_batch_dim = candidate.runtime.engine == "openvino"  # the dims of its models include the batch
    requests, intervals = (folder / f"{name}.{kind}" for kind in ("json", "intervals"))
    url, protocol = workload.address(server)
    arguments = ["-m", name, "-u", url, "-i", protocol, "--shared-memory", workload.shared_memory]
    arguments += _request_arguments(requests, workload.batch, images, has_batch_dim)
    if workload.rate is None:
        arguments += _closed_loop(workload.in_flight or 1)
    else:
        _write_intervals(intervals, workload, seconds)
        threads = min(MAX_THREADS, max(1, workload.requests(1)))
        arguments += ["--request-intervals", str(intervals), "--max-threads", str(threads)]
    figures = _figures(arguments, seconds, folder / f"{name}.csv")
    images_per_inference = workload.batch if has_batch_dim else 1
    return {"images_per_s": images_per_inference * figures.pop("inferences_per_s"), **figures}


def measure_texts(
    server: Server,
    model: str,
    texts: Sequence[Mapping[str, NDArray[Any]]],
    in_flight: int,
    seconds: float,
    folder: Path,
) -> dict[str, float]:
    """Texts a second, latencies and the server's times in ms. A request over gRPC has a single text. Raises Failed.

    `texts`: inputs by name, (1, tokens); the lengths may differ.
    """
    requests = folder / f"{model}.json"
    data = [
        {name: {"content": array[0].tolist(), "shape": [array.shape[1]]} for name, array in text.items()}
        for text in texts
    ]
    requests.write_text(json.dumps({"data": data}))
    arguments = ["-m", model, "-u", server.grpc_url, "-i", "grpc", "--input-data", str(requests)]
    figures = _figures([*arguments, *_closed_loop(in_flight)], seconds, folder / f"{model}.csv")
    return {"texts_per_s": figures.pop("inferences_per_s"), **figures}


def _closed_loop(in_flight: int) -> list[str]:
    return ["--concurrency-range", f"{in_flight}:{in_flight}"]


def _figures(arguments: list[str], seconds: float, report: Path) -> dict[str, float]:
    # -s 999 accepts any spread of the windows: the spread between our rounds says more.
    windows = ["-p", str(int(1000 * seconds / WINDOWS)), "-r", str(WINDOWS), "-s", "999"]
    _run([str(program()), *arguments, *windows], report)
    return _read(report)


def _request_arguments(requests: Path, batch: int, images: Images, has_batch_dim: bool) -> list[str]:
    """Writes the images of the requests to the file `requests`, and returns perf_analyzer's arguments for them.

    `has_batch_dim`: the dims of the model's configuration include the batch.
    """
    import numpy as np

    shape = (batch, *images.shape[1:])
    tensors = np.resize(images, (1, *shape)) if has_batch_dim else images
    fields = {"shape": shape} if has_batch_dim else {}
    data = [{"image": {"b64": base64.b64encode(tensor.tobytes()).decode(), **fields}} for tensor in tensors]
    requests.write_text(json.dumps({"data": data}))
    arguments = ["--input-data", str(requests)]
    if not has_batch_dim:
        return [*arguments, "-b", str(batch)]
    arguments += ["--shape", f"image:{','.join(map(str, shape))}"]
    return [*arguments, "--output-shared-memory-size", str(LARGEST_LOGITS * batch)]


def _write_intervals(path: Path, workload: Workload, seconds: float) -> None:
    """Writes the microseconds before each request. After the last request perf_analyzer starts over."""
    import numpy as np

    due_us = np.round(1e6 * workload.due_s(seconds))
    path.write_text("".join(f"{max(1, int(interval))}\n" for interval in np.diff(due_us, prepend=0)))


def _run(command: list[str], report: Path) -> None:
    """Runs perf_analyzer, which writes `report`. Raises Failed."""
    inherited = [folder] if (folder := os.environ.get("LD_LIBRARY_PATH")) else []  # the driver's, in a container
    environment = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join([str(TOOL / "lib"), *inherited])}
    report.unlink(missing_ok=True)
    command = [*command, "-f", str(report), "--verbose-csv"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    output = " ".join(f"{done.stdout} {done.stderr}".split())
    if UNSTABLE in output:
        raise Failed(GAP)
    if done.returncode or not report.is_file():
        if refusal := next((message for message in REFUSALS if message in output), None):
            raise Failed(f"the server refused requests: {refusal}")
        raise Failed(f"perf_analyzer stopped with exit code {done.returncode}: {output[-LONGEST_OUTPUT:]}")


def _read(report: Path) -> dict[str, float]:
    """The figures of a report. Its times are microseconds; ours are milliseconds."""
    with report.open(newline="") as file:
        row = next(csv.DictReader(file))
    return {
        "inferences_per_s": float(row["Inferences/Second"]),
        **{f"p{percent}_ms": float(row[f"p{percent} latency"]) / 1000 for percent in (50, 90, 95, 99)},
        "server_queue_ms": float(row["Server Queue"]) / 1000,
        "server_compute_ms": sum(float(row[name]) for name in COMPUTE) / 1000,
    }
