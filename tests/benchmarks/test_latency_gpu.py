"""The benchmark on a CUDA device: every engine of PyTorch, lower precisions, events beside the clock."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.contestants import contestant, example_images, expected_logits
from benchmarks.latency import latency
from models.config import ModelConfig

pytestmark = pytest.mark.gpu
RUNTIMES = ("torch", "torch-sdpa", "torch-optimized", "torch-compile", "torch-cudagraphs", "torch-cudagraphs-optimized")


@pytest.fixture(autouse=True)
def cuda_device() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def test_every_engine_of_pytorch(tmp_path: Path) -> None:
    path = tmp_path / "latency.json"
    options = ["--device", "cuda", "--batch", "1", "--batch", "64", "--depth", "1", "--seconds", "2"]
    named = ["--models", "vitbn", "--runtimes", ",".join(RUNTIMES), "--precision", "fp32,tf32,fp16,bf16"]
    result = CliRunner().invoke(latency, [*options, *named, "--json", str(path)])
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    measured = {(row["runtime"], row["precision"], row["batch"]) for row in written["rows"]}
    absent = {(row["runtime"], row["precision"], batch) for row in written["missing"] for batch in (1, 64)}
    everything = {(r, p, b) for r in RUNTIMES for p in ("fp32", "tf32", "fp16", "bf16") for b in (1, 64)}
    assert measured | absent == everything
    assert ("torch-cudagraphs", "fp32", 1) in measured
    assert written["environment"]["gpu"]
    for row in written["rows"]:
        assert 0 < row["device_p50_ms"] <= 1.1 * row["p50_ms"]
        assert row["peak_memory_mb"] > 0
    for name in ("gemm_gflops_per_s", "copy_gb_per_s"):
        assert written["limits"][name] > 0


def test_a_graph_answers_new_images_at_every_batch_size() -> None:
    import torch

    config = ModelConfig(depth=1)
    images = example_images(config, 64)
    one = contestant(config, "torch-cudagraphs-optimized", "fp32", "cuda", 1, [64, 7])
    for part in (images, images[::-1].copy(), images[:7]):
        found = one.run(torch.from_numpy(part).cuda()).cpu().numpy()
        assert abs(found - expected_logits(config, part)).max() < 1e-4
