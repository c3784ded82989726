import base64
import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import psutil
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from export.equivalence import embedded_sample
from export.publishing import publish as module
from export.publishing.artifact import Artifact, PublishError, read_version
from export.publishing.publish import publish, read_config, serve, sweep, versions
from export.publishing.triton_config import Serving, served_versions
from models.config import ModelConfig
from serving.running import running_server


def artifact_of(config: ModelConfig = ModelConfig(), data: bytes = b"graph" * 100_000) -> Artifact:  # noqa: B008
    manifest = {
        "model_config": json.loads(config.to_json()),
        "rewrites": ["fold_batchnorm"],
        "max_abs_error": 1e-6,
        "checkpoint_sha256": "0",
        "metrics": {"test_accuracy": 0.98},
    }
    return Artifact(config, manifest, "model.onnx", data)


ARTIFACT = artifact_of()


def test_versions_count_up_and_stay(tmp_path: Path) -> None:
    first = publish(tmp_path, "vitbn", ARTIFACT)
    assert first == tmp_path / "vitbn" / "1"
    assert publish(tmp_path, "vitbn", replace(ARTIFACT, data=b"new")) == tmp_path / "vitbn" / "2"
    assert (first / "model.onnx").read_bytes() == ARTIFACT.data
    assert (tmp_path / "vitbn/2/model.onnx").read_bytes() == b"new"
    assert json.loads((first / "manifest.json").read_text()).items() > ARTIFACT.manifest.items()
    assert read_version(first).data == ARTIFACT.data
    assert (tmp_path / "vitbn/labels.txt").read_text().split() == list("0123456789")
    assert sorted(p.name for p in (tmp_path / "vitbn").iterdir()) == ["1", "2", "config.pbtxt", "labels.txt"]
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == ["vitbn"]


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


def test_the_sample_and_the_logits_of_served_versions_are_in_the_config_for_the_probe(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        answer = {"sample_logits": [float(number)] * 10, "precision": "int8" if number == 3 else "fp32"}
        publish(tmp_path, "vitbn", replace(ARTIFACT, manifest=ARTIFACT.manifest | answer))

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


def test_several_instances_bound_the_queue(tmp_path: Path) -> None:
    publish(tmp_path, "vitbn", ARTIFACT, Serving(instances=2, threads=1))
    config = read_config(tmp_path / "vitbn")
    policy = config.dynamic_batching.default_queue_policy
    assert policy == pb.ModelQueuePolicy(max_queue_size=16)
    assert len(config.instance_group) == 1
    assert (config.instance_group[0].count, config.parameters["intra_op_thread_count"].string_value) == (2, "1")


def test_what_the_operator_set_stays(tmp_path: Path) -> None:
    publish(tmp_path, "vitbn", ARTIFACT, Serving(instances=3))
    config = read_config(tmp_path / "vitbn")
    config.dynamic_batching.preferred_batch_size.append(32)
    (tmp_path / "vitbn/config.pbtxt").write_text(text_format.MessageToString(config))
    publish(tmp_path, "vitbn", replace(ARTIFACT, manifest=ARTIFACT.manifest | {"checkpoint_sha256": "1"}))
    config = read_config(tmp_path / "vitbn")
    assert (config.instance_group[0].count, list(config.dynamic_batching.preferred_batch_size)) == (3, [32])
    assert config.parameters["checkpoint_sha256"].string_value == "1", "of the version that is served now"
    publish(tmp_path, "vitbn", ARTIFACT, Serving(instances=1))
    assert [group.count for group in read_config(tmp_path / "vitbn").instance_group] == [1, 1]
    config.ClearField("instance_group")
    (tmp_path / "vitbn/config.pbtxt").write_text(text_format.MessageToString(config))
    publish(tmp_path, "vitbn", ARTIFACT, Serving(instances=2))
    assert [group.count for group in read_config(tmp_path / "vitbn").instance_group] == [2]


def test_the_new_version_is_served_beside_the_one_before(tmp_path: Path) -> None:
    for _ in range(3):
        publish(tmp_path, "vitbn", ARTIFACT)
    config = read_config(tmp_path / "vitbn")
    assert config.version_policy.latest.num_versions == 2
    serve(tmp_path / "vitbn", [1, 2])
    publish(tmp_path, "vitbn", ARTIFACT)
    config = read_config(tmp_path / "vitbn")
    assert list(config.version_policy.specific.versions) == [2, 4], "version 3 had been withdrawn"
    publish(tmp_path, "vitbn", ARTIFACT)
    assert served_versions(read_config(tmp_path / "vitbn"), versions(tmp_path / "vitbn")) == [4, 5]
    assert read_config(tmp_path / "vitbn").version_policy.latest.num_versions == 2


def engine(smallest: int, largest: int) -> Artifact:
    profile = {"min": smallest, "opt": smallest, "max": largest}
    return replace(ARTIFACT, manifest=ARTIFACT.manifest | {"engine": {"profile": profile}}, file_name="model.plan")


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
        publish(tmp_path, "vitbn_other", replace(ARTIFACT, file_name="model.plan"), Serving(engine="tensorrt"))
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

    for precision, expected in (("fp32", "0"), ("tf32", "1"), ("fp16", "1"), (None, "0")):
        manifest = ARTIFACT.manifest | ({"precision": precision} if precision else {})
        publish(tmp_path, "vitbn", replace(ARTIFACT, manifest=manifest))
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
    assert [warmup.batch_size for warmup in config.model_warmup] == [1, 512]
    assert "enable_mem_pattern" not in config.parameters
    with pytest.raises(PublishError, match=r"expected a model\.plan, found a model\.onnx"):
        publish(tmp_path, "vitbn_trt", ARTIFACT)


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "-x"])
def test_names_that_triton_would_not_take(tmp_path: Path, name: str) -> None:
    with pytest.raises(PublishError, match="model name: expected"):
        publish(tmp_path / "repository", name, ARTIFACT)
    assert not list(tmp_path.iterdir())


def test_a_model_for_other_images_or_classes_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, "vitbn", ARTIFACT)
    before = (tmp_path / "vitbn/config.pbtxt").read_bytes()
    for config in (ModelConfig(channels=3), ModelConfig(labels=tuple("abcdefghij"))):
        with pytest.raises(PublishError, match="publish it under another --name"):
            publish(tmp_path, "vitbn", artifact_of(config))
    assert (tmp_path / "vitbn/config.pbtxt").read_bytes() == before
    assert versions(tmp_path / "vitbn") == [1]


def test_the_temperature_of_the_served_version_is_in_the_config(tmp_path: Path) -> None:
    calibrated = replace(ARTIFACT, manifest=ARTIFACT.manifest | {"temperature": 1.25, "calibration_error": 0.004})
    for artifact, expected in ((calibrated, "1.25"), (ARTIFACT, "")):
        publish(tmp_path, "vitbn", artifact)
        assert read_config(tmp_path / "vitbn").parameters["temperature"].string_value == expected
    assert json.loads((tmp_path / "vitbn/1/manifest.json").read_text())["calibration_error"] == 0.004


@pytest.mark.parametrize(
    "wrong", [{"temperature": 0}, {"temperature": float("nan")}, {"metrics": {"test_accuracy": "0.9"}}], ids=str
)
def test_numbers_that_no_client_could_use_are_not_published(wrong: dict[str, Any], tmp_path: Path) -> None:
    publish(tmp_path, "vitbn", ARTIFACT)
    with pytest.raises(PublishError, match="expected the manifest of an export, found"):
        publish(tmp_path, "vitbn", replace(ARTIFACT, manifest=ARTIFACT.manifest | wrong))
    assert versions(tmp_path / "vitbn") == [1]


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vitbn").mkdir()
    with pytest.raises(PublishError, match="expected the config of a published model"):
        publish(tmp_path, "vitbn", ARTIFACT)


@pytest.mark.parametrize("existing", [False, True], ids=["new model", "next version"])
def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool) -> None:
    repository = tmp_path / "repository"
    if existing:
        publish(repository, "vitbn", ARTIFACT)
    lock = repository / ".lock"
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} | {lock: b""}
    real = module.write_atomically

    def full_disk(path: Path, data: bytes) -> None:
        if path.name == "manifest.json":
            raise OSError(28, "No space left on device")
        real(path, data)

    monkeypatch.setattr(module, "write_atomically", full_disk)
    with pytest.raises(OSError, match="No space left"):
        publish(repository, "vitbn", ARTIFACT)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


PUBLISHERS = """
import os, signal, sys
from pathlib import Path
from export.publishing.artifact import read_version
from export.publishing.publish import publish
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no child is left as a zombie
folder, artifact = Path(sys.argv[1]), read_version(Path(sys.argv[2]))
publish(folder / "elsewhere", "vitbn", artifact)  # so that the imports are done
for count in sys.stdin:
    if child := os.fork():
        print(child, flush=True)
        continue
    with open(folder / f"{os.getpid()}.published", "w") as file:
        for _ in range(int(count)):
            print(publish(folder / "repository", "vitbn", artifact).name, file=file, flush=True)
    os._exit(0)
"""
PATIENCE_S = 60


class Publishers:
    """Children of one process: the imports take two seconds."""

    def __init__(self, folder: Path, version: Path) -> None:
        command = [sys.executable, "-c", PUBLISHERS, str(folder), str(version)]
        self._parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._folder = folder

    def start(self, count: int) -> int:
        """Returns the id of a process that publishes `count` times."""
        print(count, file=self._parent.stdin, flush=True)
        assert self._parent.stdout
        return int(self._parent.stdout.readline())

    def published(self, pid: int) -> list[int]:
        file = self._folder / f"{pid}.published"
        return [int(line) for line in file.read_text().split()] if file.is_file() else []

    def end(self) -> None:
        self._parent.communicate(timeout=PATIENCE_S)


@pytest.fixture
def publishers(tmp_path: Path, repository: Path) -> Iterator[Publishers]:
    """They publish to `tmp_path / "repository"`."""
    processes = Publishers(tmp_path, repository / "vitbn" / "1")
    yield processes
    processes.end()


def test_many_publishers_lose_nothing(publishers: Publishers, tmp_path: Path) -> None:
    pids = [publishers.start(10) for _ in range(3)]
    publishers.end()
    numbers = [number for pid in pids for number in publishers.published(pid)]
    assert sorted(numbers) == list(range(1, 31))
    model_dir = tmp_path / "repository" / "vitbn"
    assert versions(model_dir) == list(range(1, 31))
    assert all(read_version(model_dir / str(number)).data for number in numbers)
    assert served_versions(read_config(model_dir), numbers) == [29, 30]


@pytest.mark.live
def test_a_publisher_killed_at_any_moment_leaves_a_repository_that_serves(
    publishers: Publishers, tmp_path: Path
) -> None:
    model_dir, seen = tmp_path / "repository" / "vitbn", 0
    for delay_s in (0.0, 0.003, 0.012, 0.03, 0.1, None):
        pid = publishers.start(1_000_000)
        time.sleep(delay_s or 0)
        deadline = time.monotonic() + PATIENCE_S
        while delay_s is None and not publishers.published(pid):  # however slow the machine
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process = psutil.Process(pid)
        process.kill()
        process.wait(PATIENCE_S)
        assert [path.name for path in (tmp_path / "repository").glob("[!.]*")] in ([], ["vitbn"])
        if not model_dir.is_dir():
            continue
        present = versions(model_dir)
        assert len(present) >= seen, "none is lost"
        assert served_versions(read_config(model_dir), present)
        for number in present[seen:]:
            read_version(model_dir / str(number))  # raises if a file differs from its manifest
        seen = len(present)
    assert seen
    sweep(tmp_path / "repository")
    assert not [path for path in tmp_path.rglob(".*") if path.name != ".lock"]
    with running_server(tmp_path / "repository", ["--disable-auto-complete-config"]) as server:
        assert "READY" in server.log()


def test_publishing_three_megabytes_takes_less_than_a_second(tmp_path: Path) -> None:
    taken_s = []
    for _ in range(5):
        start = time.perf_counter()
        publish(tmp_path, "vitbn", replace(ARTIFACT, data=os.urandom(3_000_000)))
        taken_s.append(time.perf_counter() - start)
    assert sorted(taken_s)[2] < 1


def test_sweeping_leaves_what_is_anothers(tmp_path: Path) -> None:
    mine, another = tmp_path / ".publishing-a-12345678", tmp_path / ".publishing-a-b-12345678"
    for folder in (mine, another, tmp_path / "a" / "vitbn"):
        folder.mkdir(parents=True)
    assert sweep(tmp_path / "a") == [mine]
    assert another.is_dir()


def test_a_published_graph_is_the_exported_one(repository: Path) -> None:
    proto = onnx.load(repository / "vitbn" / "1" / "model.onnx")
    onnx.checker.check_model(proto, full_check=True)
    assert proto.graph.input[0].name == "image"
