from pathlib import Path

import pytest
from commands import measured

from benchmarks.latency import latency
from benchmarks.measure.candidate import Classify
from benchmarks.measure.devices import choose, gpu_uuid
from benchmarks.measure.engines import candidates
from benchmarks.measure.first_calls import build
from benchmarks.measure.gpu_state import monitor
from benchmarks.measure.measured_network import Network
from benchmarks.measure.reference import make_reference
from export.errors import Unavailable
from export.precision_table import PRECISIONS, Precision
from models.networks.config import ModelConfig

pytestmark = pytest.mark.gpu
RUNTIMES = ("torch", "torch-sdpa", "torch-compile", "torch-cudagraphs")


@pytest.fixture(autouse=True)
def cuda_device() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def test_every_engine_of_pytorch(tmp_path: Path) -> None:
    options = ["--device", "cuda", "--batch", "1", "--batch", "64", "--depth", "1", "--seconds", "2"]
    named = ["--model", "vitbn", *(word for name in RUNTIMES for word in ("--runtime", name))]
    named += [word for kind in ("fp32", "tf32", "fp16", "bf16") for word in ("--precision", kind)]
    _, written = measured(latency, tmp_path / "latency.json", *options, *named)
    rows = [row for row in written["rows"] if "reason" not in row]
    measured_rows = {(row["runtime"], row["precision"], row["batch"]) for row in rows}
    missing = [row for row in written["rows"] if "reason" in row]
    missing_rows = {(row["runtime"], row["precision"], batch) for row in missing for batch in (1, 64)}
    everything = {(r, p, b) for r in RUNTIMES for p in ("fp32", "tf32", "fp16", "bf16") for b in (1, 64)}
    assert measured_rows | missing_rows == everything
    assert ("torch-cudagraphs", "fp32", 1) in measured_rows
    assert written["machine"]["gpu"]
    for row in rows:
        assert 0 < row["device_p50_ms"] <= 5 * row["p50_ms"]  # of other calls, and launches vary
        assert row["peak_memory_mb"] > 0
    for name in ("gemm_gflops_per_s", "copy_gb_per_s"):
        assert written["limits"][name] > 0


def built(runtime: str, precision: Precision, config: ModelConfig) -> Classify:
    (candidate,) = candidates([Network("vitbn", config)], [runtime], [precision], 1, "cuda")
    return build(make_reference(candidate.network), candidate, (7, 64)).run


def test_nvml_knows_the_gpu_by_its_name_in_pytorch() -> None:
    assert monitor(gpu_uuid())


def test_a_graph_answers_new_images_at_every_batch_size() -> None:
    import torch

    config = ModelConfig(depth=1)
    reference = make_reference(Network("vitbn", config))
    run = built("torch-cudagraphs", "fp32", config)
    for order in (slice(None), slice(None, None, -1), slice(7)):
        logits = run(torch.from_numpy(reference.proof_images[order].copy()).cuda()).cpu().numpy()
        assert abs(logits - reference.logits[order]).max() < 1e-4


@pytest.mark.parametrize(
    ("runtime", "precision"),
    [
        *((runtime, "fp16") for runtime in ("tensorrt", "tensorrt-cudagraph", "onnx-cudagraph")),
        *(("tensorrt", precision) for precision in ("bf16", "int8")),
        ("onnx-optimized", "fp32"),  # what serves on a GPU without TensorRT
    ],
)
def test_tensorrt_and_onnx_runtimes_graphs(runtime: str, precision: Precision) -> None:
    import torch

    if runtime.startswith("tensorrt"):
        pytest.importorskip("tensorrt")
    assert choose("cuda") == "cuda"  # a capture needs another stream than the default
    config = ModelConfig(depth=1)
    reference = make_reference(Network("vitbn", config))
    try:
        run = built(runtime, precision, config)
    except Unavailable as reason:  # ONNX Runtime for CPUs
        pytest.skip(str(reason))
    for order in (slice(None), slice(None, None, -1), slice(7)):
        logits = run(torch.from_numpy(reference.proof_images[order].copy()).cuda()).cpu().numpy()
        largest = abs(reference.logits).max()
        assert abs(logits - reference.logits[order]).max() < PRECISIONS[precision].tolerance * largest
    assert getattr(run, "fallback", None) is None
