import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("planted_gpu_defects.py")
ROOT = SCRIPT.parents[2]
SMALLER = ("among the candidates", "expected a step that measures")  # the tests rehearse two steps
DEFECTS = {
    "1": "make benchmarks-gpu: expected .venv-gpu/bin first on PATH",
    "2": "latency.py: expected --model vit among the candidates",
    "3": "timing: expected p99 of all calls, 50 ms, found 1 ms",
    "4": "config.pbtxt: CUDA graph of batch 1: expected {'image': [1, 28, 28]} as input of graph_spec, found none",
    "5": "expected NVIDIA's perf_analyzer, found no such file",
    "6": "config.pbtxt: onnxruntime: expected as many instances as asked for, 1, found 2",
    "7": "tensorrt-plain, tensorrt-folded: expected the folding as their one difference",
    "8": "latency.py: vitbn tensorrt fp16: expected its speed over PyTorch in fp16, found over another",
    "9": "TensorRT: expected each engine built once",
    "10": "expected a refusal of a model that asked for a GPU and got a CPU",
    "11": "TensorRT: expected a profile for each batch size, found one from 1 to 5000 images",
}


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory, shared_dir: Path) -> dict[str, list[str]]:
    there = shutil.which("cc") and importlib.util.find_spec("tensorrt_bindings")
    if not there:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("a C compiler or TensorRT's bindings are not installed")
    path = tmp_path_factory.mktemp("planted") / "lines.json"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(ROOT / "tests/gpu")]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, SCRIPT, path, shared_dir / "exports"]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    written: dict[str, list[str]] = json.loads(path.read_text())
    return written


@pytest.mark.slow
def test_a_sound_preset_passes_the_dry_run(lines: dict[str, list[str]]) -> None:
    assert [line for line in lines["none"] if not any(part in line for part in SMALLER)] == []
    assert lines["plan"] == []


@pytest.mark.slow
@pytest.mark.parametrize("number", DEFECTS)
def test_each_defect_planted_again_is_named(number: str, lines: dict[str, list[str]]) -> None:
    assert any(DEFECTS[number] in line for line in lines[number]), lines[number]
    assert not any(DEFECTS[number] in line for line in lines["none"] if number != "2")
