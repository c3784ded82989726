import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from artifacts import artifact_of
from commands import invoke, ok
from linear import IMAGES, LARGEST, right

from export import to_tensorrt
from export.checkpoint_to_version import export_engine
from export.compare_logits import EquivalenceError, Images, Logits, in_parts
from export.engines import gpu
from export.engines.gpu import find_gpu, require
from export.engines.tensorrt_engine import Built, EngineError, EngineOptions, check_layers, compare_engine
from export.errors import ExportError, PublishError, Unavailable
from export.publishing.manifest import Plan, Profile
from export.publishing.sidecar import write_with_sidecars
from export.to_tensorrt import tensorrt
from models.networks.config import ModelConfig

FP32, TF32, FP16 = (EngineOptions(precision, max_batch=300) for precision in ("fp32", "tf32", "fp16"))


def wrong(error: float, at_batch: int | None = None) -> Callable[[Images], Logits]:
    return lambda images: right(images) + np.float32(error if at_batch in (None, len(images)) else 0)


def counting(sizes: list[int]) -> Callable[[Images], Logits]:
    return lambda images: (sizes.append(len(images)), right(images))[1]


def test_an_engine_is_compared_at_the_sizes_of_its_profile() -> None:
    sizes: list[int] = []
    engine = counting(sizes)
    comparison = compare_engine(right, engine, IMAGES, FP32)
    assert sizes == [1, 2, 7, 64, 300]
    assert "TensorRT, fp32: max |error|" in str(comparison)
    assert np.isclose(comparison.tolerance, 2e-5 * LARGEST)
    sizes.clear()
    compare_engine(right, engine, IMAGES, EngineOptions("fp32", min_batch=4, opt_batch=8, max_batch=16))
    assert sizes == [4, 7, 8, 16]


@pytest.mark.parametrize(
    ("options", "error", "at_batch"),
    [
        *((FP32, 3e-5 * LARGEST, 1), (TF32, 0.02 * LARGEST, 1), (FP16, 0.02 * LARGEST, 1), (FP32, float("nan"), 1)),
        (FP32, 0.1, 300),
    ],
)
def test_a_wrong_engine_is_seen_also_at_its_largest_batch_alone(
    options: EngineOptions, error: float, at_batch: int
) -> None:
    said = f"TensorRT, {options.precision}: expected an error of at most .* at batch {at_batch}"
    with pytest.raises(EquivalenceError, match=said):
        compare_engine(right, wrong(error, None if at_batch == 1 else at_batch), IMAGES, options)


def test_what_float16_cannot_tell_apart_is_left_out() -> None:
    def two_classes(first: float) -> Callable[[Images], Logits]:
        # Every other image is decided; the rest are too close for float16.
        return lambda images: np.where(images[:, :1, 0, 0] > 127, [[5.0, 0.0]], [[first, 1.0]]).astype(np.float32)

    images = IMAGES.copy()
    images[::2, 0, 0, 0], images[1::2, 0, 0, 0] = 255, 0
    assert compare_engine(two_classes(1.01), two_classes(0.99), images, FP16).max_abs_error == 0
    with pytest.raises(EquivalenceError, match="expected 1 image to compare, found 0"):
        compare_engine(two_classes(1.01), two_classes(0.99), images[1::2], FP16)


def test_any_number_of_images_in_the_batches_of_a_profile() -> None:
    sizes: list[int] = []
    assert np.allclose(in_parts(counting(sizes), largest=24, smallest=20)(IMAGES), right(IMAGES), atol=1e-4)
    assert sizes == [24, 24, 20]


def layers(*outputs: str, key: str = "Datatype") -> str:
    return json.dumps(
        {"Layers": [{"Name": f"__myl_{name}", "Outputs": [{key: name}]} for name in outputs] + ["scores"]}
    )


@pytest.mark.parametrize(
    ("precision", "given", "counted"),
    [
        ("fp16", layers("Half", "Float", "Half", "Int64"), {"float16": 2, "float32": 1}),
        ("fp16", layers("Row major linear FP16 format", key="Format/Datatype"), {"float16": 1}),
        ("fp32", layers("Float", "Float"), {"float32": 2}),
        ("tf32", layers("TF32", "Float"), {"tfloat32": 1, "float32": 1}),
        ("fp16", layers("N/A due to dynamic shapes", "a word of TensorRT 12"), {}),
    ],
    ids=["11", "10", "fp32", "tf32", "no type"],
)
def test_engines_in_the_precision_asked_for(precision: str, given: str, counted: dict[str, int]) -> None:
    assert check_layers(given, precision) == counted


@pytest.mark.parametrize(
    ("precision", "given", "message"),
    [
        ("fp16", layers("Float", "Float"), "expected layers in float16, found float32 alone"),
        ("fp32", layers("Float", "Half"), "layer __myl_Half: expected float32, found float16"),
        ("fp32", layers("Float", "TF32"), "layer __myl_TF32: expected float32, found tfloat32"),
        ("fp16", layers("Half", "BFloat16"), "layer __myl_BFloat16: expected float16 or float32, found bfloat16"),
    ],
)
def test_a_planted_layer_in_another_precision(precision: str, given: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        check_layers(given, precision)


@pytest.mark.parametrize(("counted", "warned"), [({"float16": 7}, False), ({}, True)])
def test_an_inspector_that_says_nothing_only_warns(
    counted: dict[str, int], warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"build_s": 1.0, "tensorrt": "11.4.0", "layer_types": counted}
    comparison = compare_engine(right, right, IMAGES, FP32)
    plan = Plan(Profile(1, 64, 300), comparison.max_abs_error, facts)
    to_tensorrt._print(Built(artifact_of(file="model.plan"), plan, comparison), False)
    printed = capsys.readouterr()
    assert ("the precision is not verified" in printed.err) == warned
    assert ("layers: 7 in float16" in printed.out) != warned


def test_a_plan_is_no_source(tmp_path: Path) -> None:
    for file, refused in (("model.onnx", False), ("model.plan", True)):
        write_with_sidecars(tmp_path / "a.onnx", artifact_of(file=file))
        with pytest.raises(PublishError, match="expected the manifest of an ONNX") if refused else nullcontext():
            assert to_tensorrt._source(tmp_path / "a.onnx", "vitbn").config == ModelConfig()


@pytest.mark.parametrize(
    ("found", "wanted", "usable"),
    [("int8", "fp16", "fp32 or fp16"), ("fp16", "fp32", "fp32"), ("int8", "fp32", "fp32")],
)
def test_precisions_that_do_not_lead_to_another(found: str, wanted: Any, usable: str) -> None:
    with pytest.raises(PublishError, match=f"expected {usable} to build {wanted} from, found {found}"):
        export_engine(artifact_of().with_origin(precision=found), EngineOptions(wanted), gpu.Gpu("Stub GPU", "9.0"))


@pytest.mark.parametrize(
    ("files", "version"),
    [
        (["usr/lib/x86_64-linux-gnu/libnvinfer.so.10", "usr/lib/x86_64-linux-gnu/libnvinfer.so.10.4.0"], "10.4.0"),
        (["usr/lib64/libnvinfer.so.9.3.0", "usr/lib64/libnvinfer.so.10.13.3"], "10.13.3"),
        (["usr/local/tensorrt/targets/x86_64-linux-gnu/lib/libnvinfer.so.11.4.0"], "11.4.0"),
        (["usr/lib/x86_64-linux-gnu/libnvinfer_plugin.so.10.4.0"], None),
    ],
)
def test_the_version_in_a_container(files: list[str], version: str | None, tmp_path: Path) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert gpu.server_version(tmp_path) is None, "no Triton, so the library says nothing of a server"
    (tmp_path / gpu.BACKEND).mkdir(parents=True)
    assert gpu.server_version(tmp_path) == version


@pytest.mark.parametrize(
    ("here", "server", "compatible", "message"),
    [
        ("10.4.0", "10.4", False, None),
        ("10.13.3.9.post1", "10.13.3", False, None),
        ("10.4.0", "10.13.3", True, None),
        ("10.7.0.23", "10.7.0", False, None),
        ("11.4.0.106", "10.4.0", False, "expected the server's 10.4.0, found 11.4.0.106 here; .*'tensorrt==10.4.0.*'"),
        ("10.4.0", "10.13.3", False, r"'tensorrt==10\.13\.3\.\*'"),
        ("10.13.3.9", "10.4", True, "expected the server's 10.4 or, to be version-compatible, an older 10, found"),
        ("10.4.0", "11.4.0", True, "expected the server's 11.4.0"),
    ],
)
def test_a_plan_for_the_servers_version(
    here: str, server: str, compatible: bool, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "require", lambda: gpu.Gpu("Stub GPU", "9.0"))
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(__version__=here))
    with pytest.raises(ExportError, match=message) if message else nullcontext():
        gpu.require_for_server(server, compatible)


@pytest.mark.parametrize(
    ("found", "version", "expected"),
    [
        (True, "11.4", None),
        (True, "10.8", None),
        (False, "11.4", r"^TensorRT: missing an NVIDIA GPU \(a machine with its driver; in a container, --gpus all\)$"),
        (True, None, r"expected TensorRT 10 or 11, .*found .*; export/to_onnx.py serves on this GPU without TensorRT$"),
        (True, "9.3", r"expected TensorRT 10 or 11, Polygraphy and CUDA's runtime \(pip .*\), found TensorRT 9.3;"),
    ],
)
def test_what_is_missing_and_how_to_get_it(
    found: bool, version: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "find_gpu", lambda: gpu.Gpu("Stub GPU", "9.0") if found else None)
    monkeypatch.setattr("polygraphy.cuda.wrapper", lambda: None)
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.setitem(sys.modules, "tensorrt", SimpleNamespace(__version__=version) if version else None)
    with pytest.raises(Unavailable, match=expected) if expected else nullcontext():
        require()


@pytest.mark.skipif(find_gpu() is not None, reason="this machine has a GPU")
def test_without_a_gpu_one_line_and_nothing_written(tmp_path: Path) -> None:
    for where in ("--output", "--repository"):
        result = invoke(
            tensorrt, "--model", "vitbn-tiny", where, tmp_path / "written", "--timing-cache", tmp_path / "cache"
        )
        assert result.exit_code == 1
        assert result.output.startswith("Error: TensorRT: missing an NVIDIA GPU (a machine with its driver")
        assert len(result.output.splitlines()) == 1
        assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def tensorrt_gpu() -> None:
    try:
        require()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("tensorrt_gpu")
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("model", ["vitbn-tiny", "vit", "cnn"])
def test_the_command_builds_and_publishes_an_engine(
    model: str, precision: str, mnist_dir: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    arguments = ["--model", model, "--precision", precision, "--data-dir", mnist_dir, "--timing-cache", cache]
    result = ok(tensorrt, *arguments, "--repository", tmp_path / "repository")
    assert f"Proved TensorRT, {precision}: max |error|" in result.output
    assert cache.stat().st_size > 0
    version = tmp_path / "repository" / f"{model}_trt" / "1"
    engine = json.loads((version / "manifest.json").read_text())["engine"]
    assert engine["profile"] == {"min": 1, "opt": 64, "max": 5000}
    assert {"fp32": "float32", "fp16": "float16"}[precision] in " ".join(engine["layer_types"])
    assert 'platform: "tensorrt_plan"' in (version.parent / "config.pbtxt").read_text()
