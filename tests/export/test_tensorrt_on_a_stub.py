"""The real bindings of TensorRT 10 and 11 have every name, member and keyword that the project and Polygraphy use."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from stub_device import make_libraries
from tensorrt_on_a_stub import ABSENT, BINDINGS_10
from tritonclient.grpc import model_config_pb2 as pb

from export.checkpoint_to_onnx import Form
from export.checkpoint_to_version import export_checkpoint
from export.precision import lower
from export.publishing.sidecar import write_with_sidecars
from models.catalog import shipped
from models.data import load_digits

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("tensorrt_on_a_stub.py")
ROOT = SCRIPT.parents[2]
FIRST = {10: "10.0.1", 11: "11.4.0"}
STRONGLY_TYPED = {10: "2", 11: "1"}  # 1 << its flag


def _there(condition: object, what: str) -> None:
    if not condition:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{what} is not installed")


@pytest.fixture(scope="module")
def onnx_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("onnx")
    source = export_checkpoint(shipped("vitbn-tiny"), Form(rewrites="all")).artifact
    files = {precision: folder / f"{precision}.onnx" for precision in ("fp32", "fp16")}
    write_with_sidecars(files["fp32"], source)
    write_with_sidecars(files["fp16"], lower(source, "fp16", load_digits(), 100)[0])
    return files


@pytest.fixture(scope="module", params=[10, 11])
def ran(
    request: pytest.FixtureRequest, onnx_files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Path, dict[str, Any]]:
    """Major version, folder, and what each case ended with."""
    major, folder = request.param, tmp_path_factory.mktemp("stub")
    _there(shutil.which("cc"), "a C compiler, which makes the stub libraries,")
    _there(importlib.util.find_spec("tensorrt_bindings"), "tensorrt_cu13_bindings")
    _there(importlib.util.find_spec("polygraphy"), "polygraphy")
    _there(major == 11 or (BINDINGS_10 / "tensorrt_bindings").is_dir(), "TensorRT 10's bindings (make bindings)")
    fp32, small = ["--onnx", onnx_files["fp32"]], ["--max-batch", 64, "--workspace", 512]
    options = ["--version-compatible", "--hardware-compatible", "--server-tensorrt", FIRST[major]]
    options += ["--max-batch", 300, "--workspace", 512, "--timing-cache", folder / "caches" / "timing"]
    published = ["--onnx", onnx_files["fp16"], "--precision", "fp16", "--max-batch", 300]
    cases = {
        "options": ["", [*fp32, *options, "--output", folder / "a.plan"]],
        "published": ["", [*published, "--repository", folder / "repository"]],
        "another server": ["", [*fp32, "--server-tensorrt", "10.4.0", "--output", folder / "none" / "a.plan"]],
        **{
            fault: [fault, [*fp32, *small, "--output", folder / "none" / "a.plan"]]
            for fault in ("another type", "wrong answer", "another version")
        },
    }
    (folder / "cases.json").write_text(json.dumps(cases, default=str))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests/gpu")]),
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run([sys.executable, SCRIPT, str(major), folder], env=environment, check=True)
    return major, folder, json.loads((folder / "found.json").read_text())


def test_every_option_is_one_of_both_generations(ran: tuple[int, Path, dict[str, Any]]) -> None:
    major, folder, found = ran
    code, output, used = found["options"]
    assert code == 0, output
    assert "Proved TensorRT, fp32: max |error|" in output
    assert "--exit-on-error=false --backend-config=tensorrt,version-compatible=true" in output
    for asked in (
        ["Builder", "create_network", STRONGLY_TYPED[major]],
        ["IOptimizationProfile", "set_shape", "image, (1, 1, 28, 28), (64, 1, 28, 28), (300, 1, 28, 28)"],
        ["IBuilderConfig", "clear_flag", "BuilderFlag.TF32"],
        ["IBuilderConfig", "set_memory_pool_limit", f"MemoryPoolType.WORKSPACE, {512 << 20}"],
        ["IBuilderConfig", "set_flag", "BuilderFlag.VERSION_COMPATIBLE"],
        ["IBuilderConfig", "hardware_compatibility_level", "HardwareCompatibilityLevel.AMPERE_PLUS"],
        ["IBuilderConfig", "profiling_verbosity", "ProfilingVerbosity.DETAILED"],
        ["ITimingCache", "serialize", ""],
    ):
        assert asked in used
    engine = json.loads((folder / "a.json").read_text())["engine"]
    assert (folder / "caches" / "timing").read_bytes() == b"timings"
    assert (engine["gpu"], engine["compute_capability"]) == ("Stub GPU", "9.0")
    assert engine["tensorrt"].startswith(FIRST[major])
    assert engine["profile"] == {"min": 1, "opt": 64, "max": 300}
    assert engine["layer_types"].keys() == {"float32"}
    assert 5e-5 < engine["tolerance"] < 3e-4  # 2e-5 of the largest logit


def test_a_float16_engine_is_published_for_triton(ran: tuple[int, Path, dict[str, Any]]) -> None:
    _, folder, found = ran
    code, output, used = found["published"]
    assert code == 0, output
    assert not [member for _, attribute, member in used if attribute == "set_flag"]
    published = folder / "repository" / "vitbn_trt"
    config = text_format.Parse((published / "config.pbtxt").read_text(), pb.ModelConfig())
    assert (config.platform, config.max_batch_size) == ("tensorrt_plan", 300)
    assert [spec.batch_size for spec in config.optimization.cuda.graph_spec] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert (published / "1" / "model.plan").read_bytes()


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("another type", ": expected float32, found bfloat16"),
        ("wrong answer", "Error: TensorRT, fp32: expected an error of at most "),
        ("another version", "Error: TensorRT: memory_pool_limits in CreateConfig is not available on TensorRT"),
        ("another server", "Error: TensorRT: expected the server's 10.4.0, found 1"),
    ],
)
def test_what_must_not_be_handed_on(case: str, message: str, ran: tuple[int, Path, dict[str, Any]]) -> None:
    _, folder, found = ran
    code, output, used = found[case]
    assert (code, message in output) == (1, True), output
    assert bool(used) == (case != "another server"), "a server's version is refused before anything is built"
    assert not (folder / "none").exists()


def test_what_tensorrt_11_does_not_have_is_seen(ran: tuple[int, Path, dict[str, Any]]) -> None:
    major, _, found = ran
    if major == 11:
        for call, error in ABSENT.items():
            assert found["absent"][call].startswith(error), call


RUNTIME = """
import sys
from types import SimpleNamespace
sys.modules["tensorrt"] = SimpleNamespace(__version__="11.4")
from export.engines.gpu import _load_libraries
_load_libraries()
from polygraphy import cuda
print(cuda.wrapper().handle._name)
"""


def test_the_runtime_of_cuda_may_be_broken_or_in_a_wheel_of_cuda_13(tmp_path: Path) -> None:
    _there(shutil.which("cc"), "a C compiler, which makes the stub libraries,")
    _there(importlib.util.find_spec("polygraphy"), "polygraphy")
    make_libraries(tmp_path)
    wheel = tmp_path / "packages/nvidia/cu13/lib"
    wheel.mkdir(parents=True)
    (tmp_path / "libcudart.so.13").rename(wheel / "libcudart.so.13")
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(tmp_path / "packages")}

    def loaded() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", RUNTIME], env=environment, capture_output=True, text=True)

    assert loaded().stdout.strip() == str(wheel / "libcudart.so.13")
    (tmp_path / "libcudart.so").write_text("no library")
    assert "OSError" in loaded().stderr.splitlines()[-1]
