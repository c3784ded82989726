"""The real bindings of TensorRT 10 and 11 have every name, member and keyword that the project and Polygraphy use."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from google.protobuf import text_format
from stub_libraries import BINDINGS_10, environment, python
from tritonclient.grpc import model_config_pb2 as pb

from export.pipeline import ExportOptions, export_checkpoint
from export.precision import Lowering, in_precision
from export.publishing.beside import write_beside
from models.catalog import shipped
from models.data import load_digits

REHEARSAL = Path(__file__).with_name("rehearsal.py")


def _there(condition: object, what: str) -> None:
    if not condition:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{what} is not installed")


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    _there(shutil.which("cc"), "a C compiler, which makes the stub libraries,")
    _there(importlib.util.find_spec("tensorrt_bindings"), "tensorrt_cu13_bindings")
    _there(importlib.util.find_spec("polygraphy"), "polygraphy")
    return environment(tmp_path_factory.mktemp("libraries"))


@pytest.fixture(scope="module")
def stubs_of_10(stubs: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    _there((BINDINGS_10 / "tensorrt_bindings").is_dir(), "TensorRT 10's bindings (make bindings)")
    return environment(tmp_path_factory.mktemp("libraries-of-10"), major=10)


@pytest.fixture(scope="module")
def onnx_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("onnx")
    source = export_checkpoint(shipped("vitbn-tiny"), ExportOptions(rewrites="all")).artifact
    files = {}
    for precision in ("fp32", "fp16"):
        files[precision] = folder / f"{precision}.onnx"
        lowered = in_precision(source, precision, lambda: Lowering("fp16", load_digits(), 100))
        write_beside(files[precision], lowered)
    return files


Rehearse = Callable[..., tuple[subprocess.CompletedProcess[str], list[list[str]]]]


@pytest.fixture(scope="module")
def rehearse(tmp_path_factory: pytest.TempPathFactory, shared_dir: Path) -> Iterator[Rehearse]:
    """The command's end, and each call to TensorRT: class, attribute, arguments."""
    output = tmp_path_factory.mktemp("output")
    with ExitStack() as running:

        @cache
        def process(libraries: frozenset[tuple[str, str]]) -> "subprocess.Popen[str]":
            command = [sys.executable, str(REHEARSAL), str(shared_dir / "exports")]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            return running.enter_context(subprocess.Popen(command, **pipes, text=True, env=dict(libraries)))

        def run(
            stubs: dict[str, str], log: Path, planted: str, *arguments: object
        ) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
            asked = process(frozenset(stubs.items()))
            print(json.dumps([str(each) for each in (output, log, planted, *arguments)]), file=asked.stdin, flush=True)
            code = int(asked.stdout.readline())
            said = [(output / name).read_text() for name in ("stdout", "stderr")]
            done = subprocess.CompletedProcess(arguments, code, *said)
            return done, json.loads(log.read_text()) if log.exists() else []

        yield run


@pytest.mark.slow
@pytest.mark.parametrize(("version", "strongly_typed"), [("10.0.1", "2"), ("11.4.0", "1")])
def test_every_option_is_one_of_both_generations(
    version: str,
    strongly_typed: str,
    rehearse: Rehearse,
    onnx_files: dict[str, Path],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    libraries = request.getfixturevalue("stubs" if version.startswith("11") else "stubs_of_10")
    plan, cache = tmp_path / "a.plan", tmp_path / "caches" / "timing"
    arguments = ["--onnx", onnx_files["fp32"], "--max-batch", 300, "--workspace", 512, "--timing-cache", cache]
    options = ["--version-compatible", "--hardware-compatible", "--server-tensorrt", version, "--output", plan]
    done, used = rehearse(libraries, tmp_path / "log", "nothing", *arguments, *options)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert "Proved TensorRT, fp32: max |error|" in done.stdout
    assert "--exit-on-error=false --backend-config=tensorrt,version-compatible=true" in done.stdout
    assert len(done.stdout.splitlines()) == 6
    for asked in (
        ["Builder", "create_network", strongly_typed],  # 1 << STRONGLY_TYPED
        ["IOptimizationProfile", "set_shape", "image, (1, 1, 28, 28), (64, 1, 28, 28), (300, 1, 28, 28)"],
        ["IBuilderConfig", "clear_flag", "BuilderFlag.TF32"],
        ["IBuilderConfig", "set_memory_pool_limit", f"MemoryPoolType.WORKSPACE, {512 << 20}"],
        ["IBuilderConfig", "set_flag", "BuilderFlag.VERSION_COMPATIBLE"],
        ["IBuilderConfig", "hardware_compatibility_level", "HardwareCompatibilityLevel.AMPERE_PLUS"],
        ["IBuilderConfig", "profiling_verbosity", "ProfilingVerbosity.DETAILED"],
        ["ITimingCache", "serialize", ""],
        ["EngineInspector", "get_engine_information", "LayerInformationFormat.JSON"],
    ):
        assert asked in used
    manifest = json.loads((tmp_path / "a.json").read_text())
    engine = manifest["engine"]
    assert (manifest["file"], cache.read_bytes()) == ("model.plan", b"timings")
    assert plan.read_bytes()
    assert (engine["gpu"], engine["compute_capability"], engine["tensorrt"][: len(version)]) == (
        "Stub GPU",
        "9.0",
        version,
    )
    assert engine["profile"] == {"min": 1, "opt": 64, "max": 300}
    assert engine["onnx_sha256"] == from_export_sha256(onnx_files["fp32"])
    assert engine["build_s"] > 0
    assert engine["layer_types"] == {"float32": 7}
    assert 5e-5 < engine["tolerance"] < 3e-4  # 2e-5 of the largest logit


def from_export_sha256(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
def test_a_float16_engine_is_published_for_triton(
    rehearse: Rehearse, stubs: dict[str, str], onnx_files: dict[str, Path], tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    arguments = ["--onnx", onnx_files["fp16"], "--precision", "fp16", "--max-batch", 300]
    done, used = rehearse(stubs, tmp_path / "log", "nothing", *arguments, "--repository", repository)
    assert done.returncode == 0, done.stderr
    assert "Proved TensorRT, fp16: max |error|" in done.stdout
    assert ["IBuilderConfig", "hardware_compatibility_level", "HardwareCompatibilityLevel.NONE"] in used
    assert not [member for _, attribute, member in used if attribute == "set_flag"]
    config = text_format.Parse((repository / "vitbn_trt" / "config.pbtxt").read_text(), pb.ModelConfig())
    assert (config.platform, config.max_batch_size) == ("tensorrt_plan", 300)
    assert [spec.batch_size for spec in config.optimization.cuda.graph_spec] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert [warmup.batch_size for warmup in config.model_warmup] == [1, 300]
    assert (repository / "vitbn_trt" / "1" / "model.plan").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "message"),
    [
        ("another type", "Error: layer __myl_"),
        ("wrong answer", "Error: TensorRT, fp32: expected an error of at most "),
        (
            "another version",
            "Error: TensorRT: memory_pool_limits in CreateConfig is not available on TensorRT version 11.",
        ),
    ],
)
def test_what_must_not_be_handed_on(
    planted: str,
    message: str,
    rehearse: Rehearse,
    stubs: dict[str, str],
    onnx_files: dict[str, Path],
    tmp_path: Path,
) -> None:
    plan = tmp_path / "a.plan"
    arguments = ["--onnx", onnx_files["fp32"], "--max-batch", 64, "--workspace", 512, "--output", plan]
    done, used = rehearse(stubs, tmp_path / "log", planted, *arguments)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]
    assert used
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


@pytest.mark.slow
def test_a_server_with_another_tensorrt_is_refused_before_anything_is_built(
    rehearse: Rehearse, stubs: dict[str, str], onnx_files: dict[str, Path], tmp_path: Path
) -> None:
    arguments = ["--onnx", onnx_files["fp32"], "--server-tensorrt", "10.4.0", "--output", tmp_path / "a.plan"]
    done, used = rehearse(stubs, tmp_path / "log", "nothing", *arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: TensorRT: expected the server's 10.4.0, found 11.4")
    assert "pip install 'tensorrt==10.4.0.*'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not used
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


@pytest.mark.slow
@pytest.mark.parametrize("libraries", ["stubs", "stubs_of_10"])
def test_the_benchmarks_serve_and_execute_an_engine(
    libraries: str, rehearse: Rehearse, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    done, used = rehearse(
        request.getfixturevalue(libraries), tmp_path / "log", "nothing", "served", tmp_path / "models"
    )
    assert done.returncode == 0, done.stderr
    config = text_format.Parse((tmp_path / "models/it/config.pbtxt").read_text(), pb.ModelConfig())
    assert (config.platform, config.max_batch_size) == ("tensorrt_plan", 64)
    assert [group.kind for group in config.instance_group] == [pb.ModelInstanceGroup.KIND_GPU]
    assert ["IOptimizationProfile", "set_shape", "image, (1, 1, 28, 28), (64, 1, 28, 28), (64, 1, 28, 28)"] in used
    executed = [call for call in used if call[0] == "IExecutionContext"]
    for asked in (
        ["set_optimization_profile_async", "0, 7"],  # the server's only profile
        ["set_optimization_profile_async", "1, 7"],  # that of 9 images of two
        *(["set_input_shape", f"image, ({count}, 1, 28, 28)"] for count in (5, 4, 9)),
        ["execute_async_v3", "7"],
    ):
        assert ["IExecutionContext", *asked] in executed


ABSENT = {
    "Conformant(trt.Builder).create_network(flag=1)": "TypeError: create_network",
    "Conformant(trt.Builder).create_network('1')": "TypeError: create_network",
    "Conformant(trt.Builder).build_engine": "AttributeError",
    "Conformant(trt.IBuilderConfig).max_workspace_size": "AttributeError",
    "trt.BuilderFlag.FP16": "AttributeError",
    "Conformant(trt.IOptimizationProfile).set_shape('image', (1,), (2,))": "TypeError: set_shape",
    "Conformant(trt.Builder).create_network(flags=1).num_inputs": "no error",
}
TRY_EACH = f"""
import tensorrt as trt
from benchmarks.measure.stub_device import Conformant
for call in {list(ABSENT)}:
    try:
        eval(call)
        print("no error")
    except (AttributeError, TypeError) as error:
        print(f"{{type(error).__name__}}: {{error}}")
"""


@pytest.mark.slow
def test_what_tensorrt_11_does_not_have_is_seen(stubs: dict[str, str]) -> None:
    done = python(stubs, "-c", TRY_EACH)
    found = done.stdout.splitlines()
    assert len(found) == len(ABSENT), done.stderr
    for (call, error), line in zip(ABSENT.items(), found, strict=True):
        assert line.startswith(error), call


REQUIRE = """
from export.engines.gpu import require
from export.errors import Unavailable
try: print(require())
except Unavailable as missing: print(missing)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left_out", "version", "expected"),
    [
        ((), "11.4", "Gpu(name='Stub GPU', compute_capability='9.0')"),
        ((), "10.8", "Gpu(name='Stub GPU'"),
        (("libcuda.so.1",), "11.4", "TensorRT: missing an NVIDIA GPU (a machine with its driver; "),
        (
            ("tensorrt",),
            "11.4",
            "TensorRT: missing TensorRT 10 or 11 (pip install -c constraints.txt -e '.[tensorrt]'); "
            "export/to_onnx.py serves on this GPU without TensorRT",
        ),
        ((), "9.3", "TensorRT: missing TensorRT 10 or 11, found 9.3, (pip install"),
        (("libnvinfer.so.11",), None, "TensorRT: missing TensorRT 10 or 11, found libnvinfer.so.11: cannot open"),
    ],
    ids=["all there", "10", "no GPU", "no TensorRT", "too old", "a library less"],
)
def test_what_is_missing_and_how_to_get_it(
    left_out: tuple[str, ...], version: str | None, expected: str, tmp_path: Path
) -> None:
    _there(shutil.which("cc"), "a C compiler, which makes the stub libraries,")
    _there(importlib.util.find_spec("polygraphy"), "polygraphy")
    there = environment(tmp_path, *left_out)
    if version and "tensorrt" not in left_out:
        (tmp_path / "packages/tensorrt/__init__.py").write_text(f"__version__ = {version!r}")
    done = python(there, "-c", REQUIRE)
    assert done.stdout.startswith(expected), done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.slow
def test_the_runtime_of_cuda_may_be_broken_or_in_a_wheel_of_cuda_13(tmp_path: Path) -> None:
    _there(shutil.which("cc"), "a C compiler, which makes the stub libraries,")
    _there(importlib.util.find_spec("polygraphy"), "polygraphy")
    there = environment(tmp_path)
    (tmp_path / "packages/tensorrt/__init__.py").write_text("__version__ = '11.4'")
    wheel = tmp_path / "packages/nvidia/cu13/lib"
    wheel.mkdir(parents=True)
    (tmp_path / "libcudart.so.13").rename(wheel / "libcudart.so.13")
    loaded = f"{REQUIRE}\nfrom polygraphy import cuda; print(cuda.wrapper().handle._name)"
    assert python(there, "-c", loaded).stdout.splitlines()[1:] == [str(wheel / "libcudart.so.13")]
    (tmp_path / "libcudart.so").write_text("no library")
    assert python(there, "-c", REQUIRE).stdout.startswith("TensorRT: missing CUDA's runtime libcudart.so (")
