import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from artifacts import ARTIFACT, artifact_of, engine
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from common.repository import versions
from common.sample import Sample
from export.errors import PublishError
from export.publishing.build_config_pbtxt import Model, Serving, config_pbtxt
from export.publishing.config_parameters import Version
from export.publishing.publish import publish, read_config, serve
from export.sample_images import embedded_sample
from models.networks.config import ModelConfig


def test_the_config_is_complete_and_parses_back(tmp_path: Path) -> None:
    publish(tmp_path, "vitbn", ARTIFACT)
    config = text_format.Parse((tmp_path / "vitbn/config.pbtxt").read_text(), pb.ModelConfig())
    assert (config.name, config.backend, config.max_batch_size) == ("vitbn", "onnxruntime", 256)
    assert [(i.name, i.data_type, list(i.dims)) for i in config.input] == [("image", pb.TYPE_UINT8, [1, 28, 28])]
    assert [(o.name, o.data_type, list(o.dims)) for o in config.output] == [("logits", pb.TYPE_FP32, [10])]
    assert config.output[0].label_filename == "labels.txt"
    assert config.version_policy.latest.num_versions == 2
    auto = pb.ModelInstanceGroup.KIND_AUTO
    groups = [(group.kind, group.count, group.rate_limiter.priority) for group in config.instance_group]
    assert groups == [(auto, 1, 1), (auto, 1, 1000)], "the instance and its standby"
    assert config.HasField("dynamic_batching")
    assert config.dynamic_batching.default_queue_policy == pb.ModelQueuePolicy(max_queue_size=16)
    assert not config.response_cache.enable
    assert [(w.batch_size, list(w.inputs["image"].dims)) for w in config.model_warmup] == [
        (1, [1, 28, 28]),
        (256, [1, 28, 28]),
    ]
    assert ModelConfig.from_json(config.parameters["model_config"].string_value) == ModelConfig()
    assert config.parameters["test_accuracy"].string_value == "0.98"
    assert config.parameters["intra_op_thread_count"].string_value == "0"
    assert config.parameters["inner_batch"].string_value == "64"
    assert json.loads(config.parameters["rewrites"].string_value) == ["fold-affine"]


def test_the_sample_and_the_logits_of_served_versions_are_in_the_config_for_the_probe(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        precision = "int8" if number == 3 else "fp32"
        publish(tmp_path, "vitbn", artifact_of(answer=[float(number)] * 10).with_origin(precision=precision))

    def stored() -> dict[str, Any]:
        content: dict[str, Any] = json.loads(read_config(tmp_path / "vitbn").parameters["probe"].string_value)
        return content

    image = zlib.decompress(base64.b64decode(stored()["image"]))
    assert image == embedded_sample(ModelConfig()).images[0].tobytes()
    assert stored()["answers"] == {
        "2": {"logits": [2.0] * 10, "tolerance": 0.01},
        "3": {"logits": [3.0] * 10, "tolerance": None},  # processors differ below float32: the class alone counts
    }
    serve(tmp_path / "vitbn", [1, 2])
    assert sorted(stored()["answers"]) == ["1", "2"]


def test_a_version_with_another_sample_has_its_own_image(tmp_path: Path) -> None:
    first, second = ARTIFACT, artifact_of(answer=[2.0] * 10)
    image = 255 - first.sample.inputs["image"]
    sample = Sample({"image": image}, first.sample.outputs).to_bytes()
    publish(tmp_path, "vitbn", second)
    folder = tmp_path / "vitbn" / "1"
    (folder / "sample.npz").write_bytes(sample)
    publish(tmp_path, "vitbn", first)
    stored = json.loads(read_config(tmp_path / "vitbn").parameters["probe"].string_value)
    assert [sorted(each) for each in stored["answers"].values()] == [
        ["image", "logits", "tolerance"],
        ["logits", "tolerance"],
    ]
    assert zlib.decompress(base64.b64decode(stored["answers"]["1"]["image"])) == image.tobytes()
    assert zlib.decompress(base64.b64decode(stored["image"])) == first.sample.inputs["image"].tobytes()


def test_a_version_has_the_config_with_which_it_was_published(tmp_path: Path) -> None:
    for number in ("1", "2"):
        publish(tmp_path, "vitbn", artifact_of(checkpoint_sha256=number))
        paths = (tmp_path / "vitbn" / number / "config.pbtxt", tmp_path / "vitbn" / "config.pbtxt")
        fallback, config = (text_format.Parse(path.read_text(), pb.ModelConfig()) for path in paths)
        assert fallback.parameters["checkpoint_sha256"].string_value == number
        assert number in json.loads(fallback.parameters["probe"].string_value)["answers"]
        assert fallback.parameters == config.parameters


def test_bfloat16_is_as_asked_for_or_else_stays(tmp_path: Path) -> None:
    for asked, bfloat16, expected in (
        ("openvino", False, False),
        ("openvino", True, True),
        ("openvino", None, True),
        (None, False, True),  # nothing was measured in OpenVINO
        ("openvino", False, False),
    ):
        publish(tmp_path, "openvino", ARTIFACT, Serving(asked, bfloat16=bfloat16))
        parameters = read_config(tmp_path / "openvino").parameters
        answers = json.loads(parameters["probe"].string_value)["answers"].values()
        assert ("HINT_BF16" in parameters) is expected
        assert {each["tolerance"] for each in answers} == {None if expected else 0.01}
    publish(tmp_path, "vitbn", ARTIFACT, Serving(bfloat16=True))
    assert "HINT_BF16" not in read_config(tmp_path / "vitbn").parameters


@pytest.mark.parametrize("given", ["onnxruntime", "tensorrt"])
def test_one_instance_on_a_gpu_has_no_standby(given: Any) -> None:
    artifact = ARTIFACT if given == "onnxruntime" else engine(1, 8)
    model = Model("it", [1], [1], {1: Version(artifact.manifest, artifact.sample)})
    config = config_pbtxt(model, Serving(given, instances=1, device="cuda"))
    assert [group.count for group in config.instance_group] == [1]


def test_what_the_operator_set_stays(tmp_path: Path) -> None:
    publish(tmp_path, "vitbn", ARTIFACT, Serving(instances=3, threads=1))
    config = read_config(tmp_path / "vitbn")
    assert config.dynamic_batching.default_queue_policy == pb.ModelQueuePolicy(max_queue_size=16)
    config.dynamic_batching.preferred_batch_size.append(32)
    (tmp_path / "vitbn/config.pbtxt").write_text(text_format.MessageToString(config))
    publish(tmp_path, "vitbn", artifact_of(checkpoint_sha256="1"))
    config = read_config(tmp_path / "vitbn")
    assert [group.count for group in config.instance_group] == [3]
    assert config.parameters["intra_op_thread_count"].string_value == "1"
    assert list(config.dynamic_batching.preferred_batch_size) == [32]
    assert config.parameters["checkpoint_sha256"].string_value == "1", "of the version that is served now"
    publish(tmp_path, "vitbn", ARTIFACT, Serving(instances=1))
    assert [group.count for group in read_config(tmp_path / "vitbn").instance_group] == [1, 1]
    config.ClearField("instance_group")
    (tmp_path / "vitbn/config.pbtxt").write_text(text_format.MessageToString(config))
    publish(tmp_path, "vitbn", ARTIFACT, Serving(instances=2))
    assert [group.count for group in read_config(tmp_path / "vitbn").instance_group] == [2]


def test_engines_side_by_side_get_the_batch_sizes_that_all_of_them_take(tmp_path: Path) -> None:
    def limits() -> tuple[int, list[int], list[int]]:
        config = read_config(tmp_path / "vitbn_trt")
        graphs = [spec.batch_size for spec in config.optimization.cuda.graph_spec]
        return config.max_batch_size, [warmup.batch_size for warmup in config.model_warmup], graphs

    publish(tmp_path, "vitbn_trt", engine(1, 512), Serving(engine="tensorrt"))
    publish(tmp_path, "vitbn_trt", engine(3, 12), Serving(engine="tensorrt"))
    assert limits() == (12, [3, 12], [4, 8])
    publish(tmp_path, "vitbn_trt", engine(4, 64), Serving(engine="tensorrt"))
    assert limits() == (12, [4, 12], [4, 8]), "version 2 is served beside it"
    publish(tmp_path, "vitbn_trt", engine(1, 5000), Serving(engine="tensorrt"))
    assert limits() == (64, [4, 64], [4, 8, 16, 32, 64])
    before = (tmp_path / "vitbn_trt" / "config.pbtxt").read_text()
    with pytest.raises(PublishError, match="engines that share a batch size, found 1 to 5000 and 6000 to 8000"):
        publish(tmp_path, "vitbn_trt", engine(6000, 8000), Serving(engine="tensorrt"))
    assert versions(tmp_path / "vitbn_trt") == [1, 2, 3, 4]
    assert (tmp_path / "vitbn_trt" / "config.pbtxt").read_text() == before
    serve(tmp_path / "vitbn_trt", [1])
    assert limits()[:2] == (512, [1, 512])
    with pytest.raises(PublishError, match="vitbn_other: expected the profile of an engine in the manifest"):
        publish(tmp_path, "vitbn_other", artifact_of(file="model.plan"), Serving(engine="tensorrt"))
    assert not (tmp_path / "vitbn_other").exists()


def test_the_largest_request_and_the_device_are_kept_until_others_are_asked_for(tmp_path: Path) -> None:
    def facts() -> tuple[int, list[int], set[int]]:
        config = read_config(tmp_path / "vitbn")
        kinds = {group.kind for group in config.instance_group}
        return config.max_batch_size, [warmup.batch_size for warmup in config.model_warmup], kinds

    kind = pb.ModelInstanceGroup
    publish(tmp_path, "vitbn", ARTIFACT)
    assert facts() == (256, [1, 256], {kind.KIND_AUTO})
    publish(tmp_path, "vitbn", ARTIFACT, Serving(max_batch=5000, device="cuda"))
    assert facts() == (5000, [1, 5000], {kind.KIND_GPU})
    publish(tmp_path, "vitbn", ARTIFACT, Serving(instances=2))
    assert facts() == (5000, [1, 5000], {kind.KIND_GPU})
    publish(tmp_path, "openvino", ARTIFACT, Serving("openvino", max_batch=5000))
    config = read_config(tmp_path / "openvino")
    assert (config.max_batch_size, config.parameters["max_images"].string_value) == (0, "5000")
    assert list(config.model_warmup[1].inputs["image"].dims) == [5000, 1, 28, 28]


def test_float32_means_float32_on_a_gpu_unless_tf32_is_asked_for(tmp_path: Path) -> None:
    def use_tf32() -> str:
        (cuda,) = read_config(tmp_path / "vitbn").optimization.execution_accelerators.gpu_execution_accelerator
        return str(cuda.parameters["use_tf32"])

    for precision, expected in (("fp32", "0"), ("tf32", "1"), ("fp16", "1"), ("fp32", "0")):
        publish(tmp_path, "vitbn", ARTIFACT.with_origin(precision=precision))
        assert use_tf32() == expected
    serve(tmp_path / "vitbn", [1, 2])
    assert use_tf32() == "1", "the default version is the one that asked for TF32"


def test_a_plan_is_no_version_of_an_onnx_model(tmp_path: Path) -> None:
    plan = engine(1, 512)
    publish(tmp_path, "vitbn", ARTIFACT)
    with pytest.raises(PublishError, match=r"expected a model\.onnx, found a model\.plan"):
        publish(tmp_path, "vitbn", plan)
    publish(tmp_path, "vitbn_trt", plan, Serving(engine="tensorrt"))
    config = read_config(tmp_path / "vitbn_trt")
    assert (config.platform, config.backend, config.max_batch_size) == ("tensorrt_plan", "", 512)
    graphs = {spec.batch_size: spec.graph_lower_bound.batch_size for spec in config.optimization.cuda.graph_spec}
    assert graphs == {1: 1, 2: 2, 4: 3, 8: 5, 16: 9, 32: 17, 64: 33, 128: 65, 256: 129}
    for spec in config.optimization.cuda.graph_spec:  # Triton matches a request by both shapes, without the batch
        assert {name: list(shape.dim) for name, shape in spec.input.items()} == {"image": [1, 28, 28]}
        assert spec.graph_lower_bound.input == spec.input
    assert [warmup.batch_size for warmup in config.model_warmup] == [1, 512]
    assert "enable_mem_pattern" not in config.parameters
    with pytest.raises(PublishError, match=r"expected a model\.plan, found a model\.onnx"):
        publish(tmp_path, "vitbn_trt", ARTIFACT)


def test_the_temperature_of_the_served_version_is_in_the_config(tmp_path: Path) -> None:
    calibrated = artifact_of(temperature=1.25).with_origin({"calibration_error": 0.004})
    for artifact, expected in ((calibrated, "1.25"), (ARTIFACT, "")):
        publish(tmp_path, "vitbn", artifact)
        assert read_config(tmp_path / "vitbn").parameters["temperature"].string_value == expected
    assert json.loads((tmp_path / "vitbn/1/manifest.json").read_text())["calibration_error"] == 0.004


def test_single_images_get_a_session_of_their_own_unless_throughput_counts(tmp_path: Path) -> None:
    def lone_rows(**asked: Any) -> str | None:
        publish(tmp_path, "tiny", ARTIFACT, Serving(**asked))
        parameters = read_config(tmp_path / "tiny").parameters
        return parameters["lone_rows"].string_value if "lone_rows" in parameters else None

    goals: list[dict[str, Any]] = [{}, {"goal": "throughput"}, {}, {"goal": "latency"}, {}]
    assert [lone_rows(**each) for each in goals] == ["1", None, None, "1", "1"]
    publish(tmp_path, "other", ARTIFACT, Serving("openvino"))
    assert "lone_rows" not in read_config(tmp_path / "other").parameters
    with pytest.raises(PublishError, match="expected a model for onnxruntime with --for, found one for openvino"):
        publish(tmp_path, "other", ARTIFACT, Serving(goal="latency"))
