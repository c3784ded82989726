import json
import os
import re
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import pytest
from click.testing import Result
from commands import invoke
from google.protobuf import text_format
from perf_analyzer_windows import without_gaps
from tritonclient.grpc import model_config_pb2 as pb

from benchmarks import throughput
from benchmarks.load import by_perf_analyzer, compared_loads, in_process, published_candidates
from benchmarks.load.published_candidates import Failed, Published, WrongAnswer
from benchmarks.measure import engines
from benchmarks.measure.candidate import Candidate
from benchmarks.measure.engines import OPTIMISED, SERVED
from benchmarks.measure.measured_network import shipped_network
from benchmarks.measure.result_file import command
from benchmarks.measure.workload_settings import Workload
from benchmarks.reporting.tables.saturation import saturation
from models.data import DataError

run = partial(invoke, throughput.throughput, "--model", "vitbn-tiny", "--rounds", 1, "--seconds")
ENGINES = [word for engine in ("onnxruntime", "openvino", "tensorrt") for word in ("--engine", engine)]
PERCENTILES = ("p50_ms", "p90_ms", "p95_ms", "p99_ms")


@pytest.fixture
def perf_analyzer() -> None:
    if not (by_perf_analyzer.TOOL / "bin" / "perf_analyzer").is_file():
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no perf_analyzer here: make perf_analyzer")


def rows_of(path: Path, result: Result, *reasons: str) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    rows = [row for row in written["rows"] if "reason" not in row]
    assert {row["reason"] for row in written["rows"] if "reason" in row} == set(reasons)
    for row in rows:
        assert all(row[name] > 0 for name in ("images_per_s", *PERCENTILES, "server_queue_ms", "server_compute_ms"))
        for name in ("images_per_s", "p50_ms"):
            assert row[name] == median(row[f"rounds_{name}"])
        assert sorted(PERCENTILES, key=row.__getitem__) == list(PERCENTILES)
        assert f"{row['images_per_s']:,.0f}" in result.output
        if row["in_flight"]:
            assert row["of_in_process"] == pytest.approx(row["images_per_s"] / row["in_process_images_per_s"])
            assert row["added_ms"] == pytest.approx(row["p50_ms"] - row["in_process_p50_ms"])
            # Little's law; on a busy machine the median is far from the mean.
            in_flight = row["images_per_s"] / row["batch"] * row["p50_ms"] / 1000
            assert 0.02 < in_flight / row["in_flight"] < 50
        else:
            assert row["in_process_images_per_s"] is None
            assert row["images_per_s"] == pytest.approx(row["rate"], rel=0.5)  # a busy machine sends late
    return rows


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.usefixtures("perf_analyzer")
def test_a_short_run(tmp_path: Path) -> None:
    path = tmp_path / "throughput.json"
    loads = ("--batch", 16, "--in-flight", 4, "--rate", 800)
    reached = ("--sharing", "2x1", "--protocol", "grpc", "--protocol", "http", "--shared-memory", "system")
    seconds, result = without_gaps(lambda seconds: run(seconds, *loads, *reached, "--json", path))
    rows = rows_of(path, result)
    assert [(row["protocol"], row["in_flight"], row["rate"]) for row in rows] == [
        ("grpc", 4, None),
        ("http", 4, None),
        ("grpc", None, 800),
        ("http", None, 800),
    ]
    for row in rows:
        assert (row["model"], row["shared_memory"], row["instances"], row["threads"]) == ("vitbn-tiny", "system", 2, 1)
    written = json.loads(path.read_text())
    assert written["command"].endswith(
        f"--protocol grpc --protocol http --shared-memory system --seconds {seconds} --rounds 1 --json FILE"
    )
    assert {(point["protocol"], point["by"]) for point in saturation(written["rows"])} == {
        (protocol, by) for protocol in ("grpc", "http") for by in ("rate", "in_flight")
    }


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.usefixtures("perf_analyzer")
def test_several_engines_with_large_requests(tmp_path: Path) -> None:
    path = tmp_path / "throughput.json"
    options = (*ENGINES, "--batch", 300, "--in-flight", 2, "--device", "cpu")
    memories = ("--shared-memory", "system", "--shared-memory", "cuda")
    options += (*memories, "--sharing", "1x1", "--json", path)
    _, result = without_gaps(lambda seconds: run(seconds, *options))
    reasons = ("TensorRT needs another device than cpu", "CUDA shared memory: expected a GPU, found cpu")
    rows = rows_of(path, result, *reasons)
    assert [(row["engine"], row["precision"], row["shared_memory"], row["batch"]) for row in rows] == [
        (engine, "fp32", "system", 300) for engine in ("onnxruntime", "openvino")
    ]
    assert re.search("grpc, shared memory +OpenVINO fp32, 1 x 1", result.output)
    missing = [row for row in json.loads(path.read_text())["rows"] if "reason" in row]
    assert {(row["engine"], row["protocol"], row["shared_memory"]) for row in missing} == {
        *((engine, "grpc", "cuda") for engine in ("onnxruntime", "openvino", "tensorrt")),
        *(("tensorrt", "grpc", "system"), ("tensorrt", "in process", "none")),
    }


def test_without_perf_analyzer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_perf_analyzer, "TOOL", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run(2)
    assert result.exit_code == 1
    assert "expected NVIDIA's perf_analyzer, found no such file; make perf_analyzer fetches it" in result.output


@pytest.mark.live
@pytest.mark.usefixtures("perf_analyzer")
def test_a_server_that_answers_otherwise_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = engines.start
    monkeypatch.setattr(engines, "start", lambda data, *setup: lambda images: real(data, *setup)(images) + 2e-3)
    result = run(2, "--sharing", "1x0", "--json", tmp_path / "throughput.json")
    assert result.exit_code == 1
    expected = (
        r"Error: vitbn-tiny-onnxruntime-fp32-1x0, grpc: expected an error of at most 2.0e-05 of the largest logit"
    )
    assert re.search(expected, result.output)
    assert not list(tmp_path.iterdir())


SHIPPED_VIT = shipped_network("vit")
VIT = Candidate(SHIPPED_VIT, OPTIMISED)
FIGURES = {"images_per_s": 1.0, "p50_ms": 2.0}


def test_a_cell_that_fails_costs_no_other_figures(capsys: pytest.CaptureFixture[str]) -> None:
    good, wrong, bad = (Candidate(SHIPPED_VIT, SERVED[engine]) for engine in ("onnxruntime", "tensorrt", "openvino"))
    calls = []

    def measure(candidate: Candidate, workload: Workload, seconds: float) -> dict[str, float]:
        if candidate == bad:
            calls.append(candidate)
            raise MemoryError("5 GB are too many\nand more lines")
        if workload.in_flight == 8:
            raise Failed("the server refused requests: Exceeds maximum queue size")
        return FIGURES

    load = Workload(1, 1, protocol="grpc")
    order: list[compared_loads.Cell] = [(candidate, load) for candidate in (good, wrong, bad)]
    order.append((good, replace(load, in_flight=8)))
    *_, results = compared_loads.measure_rounds(measure, order, 1, 2, {order[1]: WrongAnswer("other logits")})
    rows = compared_loads.rows(results)
    refused = "the server refused requests: Exceeds maximum queue size"
    assert [row.get("reason") for row in rows] == [None, "other logits", "MemoryError: 5 GB are too many", refused]
    assert [row.get("wrong_answer") for row in rows] == [None, True, None, None]
    assert (rows[0]["rounds_p50_ms"], rows[3]["in_flight"], len(calls)) == ([2.0] * 2, 8, 1)
    assert "Not measured: vit-tensorrt-fp32-1x0, grpc: other logits" in capsys.readouterr().err
    with pytest.raises(Failed, match="nothing was measured: other logits"):
        next(compared_loads.measure_rounds(measure, order[1:2], 1, 2, {order[1]: Failed("other logits")}))


def test_a_form_that_cannot_be_made_costs_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(candidate: Candidate, *more: Any) -> Published:
        if candidate.precision == "fp16":
            raise DataError("mnist: expected its four idx files")
        return Published(b"")

    monkeypatch.setattr(compared_loads, "publish", make)
    forms = [
        Candidate(SHIPPED_VIT, OPTIMISED, precision=precision, device="cuda") for precision in ("fp32", "fp16", "bf16")
    ]
    load = Workload(1, rate=50, protocol="grpc")
    files, failures = compared_loads.publish_all([(form, load) for form in forms], tmp_path)
    assert list(files) == forms[:1]
    assert [str(error) for error in failures.values()] == [
        "mnist: expected its four idx files",
        "ONNX Runtime on cuda is measured only in fp32, tf32, fp16",
    ]
    with pytest.raises(Failed, match="TensorRT needs another device than cpu"):
        next(compared_loads.run([(Candidate(SHIPPED_VIT, SERVED["tensorrt"]), Workload(1, 1, protocol="grpc"))], 1, 1))


def test_candidates_that_differ_in_their_threads_share_an_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    monkeypatch.setattr(compared_loads, "publish", lambda *arguments: names.append(arguments[2]) or Published(b""))
    sharings = [(1, 0), (2, 1)]
    asked_cells = [(Candidate(SHIPPED_VIT, OPTIMISED, threads=t), Workload(1, 1, instances=n)) for n, t in sharings]
    compared_loads.publish_all(asked_cells, tmp_path)
    assert names == [{"vit-onnxruntime-fp32-1x0": (1, 0), "vit-onnxruntime-fp32-2x1": (2, 1)}]


@pytest.mark.slow
def test_the_server_takes_large_requests_on_the_gpu(tmp_path: Path) -> None:
    candidate = Candidate(shipped_network("vitbn-tiny"), OPTIMISED, precision="tf32", device="cuda")
    files = published_candidates.publish(candidate, tmp_path, {"model": (2, 1)}, 5000)
    config = text_format.Parse((tmp_path / "model" / "config.pbtxt").read_text(), pb.ModelConfig())
    assert (config.max_batch_size, files.plan) == (5000, None)
    assert [warmup.batch_size for warmup in config.model_warmup] == [1, 5000]
    assert [(group.kind, group.count) for group in config.instance_group] == [(pb.ModelInstanceGroup.KIND_GPU, 2)]
    (cuda,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert cuda.parameters["use_tf32"] == "1"


@pytest.mark.parametrize(
    ("precision", "error", "right"), [("fp32", 1e-4, True), ("fp32", 4e-4, False), ("fp16", 0.05, True)]
)
def test_answers_are_compared_relative_to_the_largest_logit(precision: Any, error: float, right: bool) -> None:
    expected = np.array([[10.0, -3.0]])
    with nullcontext() if right else pytest.raises(WrongAnswer, match=r"it: expected an error of at most 2.0e-05"):
        published_candidates.check("it", expected + error, expected, precision)
    with pytest.raises(WrongAnswer, match=r"it: expected an error of at most .*, found nan"):
        published_candidates.check("it", expected * np.nan, expected, precision)


def test_the_preset_of_rates_is_the_command_with_other_defaults() -> None:
    words = ["--preset", "rates", "--seconds", "9"]
    given = throughput.throughput.make_context("throughput", [*words]).params
    assert (given["rates"], given["batches"], given["sharings"]) == ((500, 1000, 2000), (1,), [[1, 0]])
    assert (given["models"], given["seconds"], given["in_flight"]) == (("vitbn",), 9, ())
    assert throughput.throughput.make_context("throughput", [*words, "--rate", "50"]).params["rates"] == (50,)


def test_a_recorded_command_can_be_given_again() -> None:
    words = ["--sharing", "2x1", "--rate", "500", "--batch", "1"]
    with throughput.throughput.make_context("throughput", [*words]):
        assert command() == "python benchmarks/throughput.py --sharing 2x1 --batch 1 --rate 500"
    with throughput.throughput.make_context("throughput", ["--preset", "rates", "--seconds", "9"]):
        assert command() == "python benchmarks/throughput.py --preset rates --seconds 9"


def test_a_plan_is_executed_in_process_too(monkeypatch: pytest.MonkeyPatch) -> None:
    executions = []

    def execution(plan: bytes, profile_of: Any) -> str:
        executions.append((plan, profile_of(1), profile_of(5000)))
        return "the plan"

    monkeypatch.setattr("benchmarks.measure.run_tensorrt.execution", execution)
    copy = in_process.start_instance(Published(b"onnx", b"plan"), Candidate(SHIPPED_VIT, SERVED["tensorrt"]))
    assert copy.run == "the plan"
    assert executions == [(b"plan", 0, 0)]


def test_more_seconds_send_a_low_rate_enough() -> None:
    (load,) = throughput._loads((1,), (), (10,), 4)
    assert len(load.due_s(4)) == load.requests(4) == 40
    assert load.due_s(4).max() > 3


def test_a_gpu_needs_a_native_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.launcher.native_server", lambda path: None)
    assert published_candidates.device_of_server("auto") == published_candidates.device_of_server("cpu") == "cpu"
    with pytest.raises(click.ClickException, match="expected a native tritonserver, found nvidia-pytriton's for CPUs"):
        published_candidates.device_of_server("cuda")
    monkeypatch.setattr("serving.launcher.native_server", lambda path: Path("tritonserver"))
    monkeypatch.setattr("benchmarks.measure.devices.choose", lambda wanted: f"as chosen for {wanted}")
    assert published_candidates.device_of_server("auto") == "as chosen for auto"


def test_the_same_process_works_all_the_time_in_batches_of_the_load() -> None:
    images = np.zeros((4, 1, 28, 28), np.uint8)
    sizes = []

    def run(batch: Any) -> Any:
        sizes.append(len(batch))
        time.sleep(0.001)
        return np.zeros((len(batch), 10), np.float32)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "start", lambda data, setup: run)
        candidate = Candidate(SHIPPED_VIT, OPTIMISED, threads=1)
        copies = [in_process.start_instance(Published(b""), candidate) for _ in range(2)]
        figures = in_process.measure(copies, Workload(6, 2), images, 0.5)
    assert set(sizes) == {6}
    assert figures["images_per_s"] == pytest.approx(6 * len(sizes) / 0.5, rel=0.5)
    assert figures["p50_ms"] >= 1
