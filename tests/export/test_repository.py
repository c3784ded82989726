"""Publishing: whole versions, counted up, never changed; complete configs; many publishers; death at any moment."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from export import repository as module
from export.graph import Exported
from export.repository import PublishError, publish, versions
from export.triton_config import triton_config
from models.config import ModelConfig

MANIFEST = {"rewrites": [], "max_abs_error": 1e-6, "checkpoint_sha256": "0", "metrics": {"test_accuracy": 0.98}}
EXPORTED = Exported(b"graph" * 100_000, ModelConfig(), MANIFEST, (), ())


def test_versions_count_up_and_stay(tmp_path: Path) -> None:
    first = publish(tmp_path, "vitbn", EXPORTED)
    assert first == tmp_path / "vitbn" / "1"
    assert publish(tmp_path, "vitbn", replace(EXPORTED, onnx=b"new")) == tmp_path / "vitbn" / "2"
    assert (first / "model.onnx").read_bytes() == EXPORTED.onnx
    assert (tmp_path / "vitbn/2/model.onnx").read_bytes() == b"new"
    assert json.loads((first / "manifest.json").read_text()) == MANIFEST
    assert (tmp_path / "vitbn/labels.txt").read_text().split() == list("0123456789")
    assert sorted(p.name for p in (tmp_path / "vitbn").iterdir()) == ["1", "2", "config.pbtxt", "labels.txt"]
    assert [p.name for p in tmp_path.iterdir()] == ["vitbn"]


def test_the_config_is_complete_and_parses_back(tmp_path: Path) -> None:
    publish(tmp_path, "vitbn", EXPORTED)
    config = text_format.Parse((tmp_path / "vitbn/config.pbtxt").read_text(), pb.ModelConfig())
    assert (config.name, config.backend, config.max_batch_size) == ("vitbn", "onnxruntime", 256)
    assert [(i.name, i.data_type, list(i.dims)) for i in config.input] == [("image", pb.TYPE_UINT8, [1, 28, 28])]
    assert [(o.name, o.data_type, list(o.dims)) for o in config.output] == [("logits", pb.TYPE_FP32, [10])]
    assert config.output[0].label_filename == "labels.txt"
    assert config.HasField("dynamic_batching")
    assert not config.dynamic_batching.HasField("default_queue_policy")  # would stall some requests for 500 ms
    assert ModelConfig.from_json(config.parameters["model_config"].string_value) == ModelConfig()
    assert config.parameters["test_accuracy"].string_value == "0.98"
    assert config == text_format.Parse(triton_config("vitbn", ModelConfig(), MANIFEST), pb.ModelConfig())


@pytest.mark.parametrize("name", ["", "..", "a/b", "a b", "-x"])
def test_names_that_triton_would_not_take(tmp_path: Path, name: str) -> None:
    with pytest.raises(PublishError, match="model name: expected"):
        publish(tmp_path / "repository", name, EXPORTED)
    assert not list(tmp_path.iterdir())


def test_a_model_for_other_images_or_classes_is_refused(tmp_path: Path) -> None:
    publish(tmp_path, "vitbn", EXPORTED)
    before = (tmp_path / "vitbn/config.pbtxt").read_bytes()
    for config in (ModelConfig(channels=3), ModelConfig(labels=tuple("abcdefghij"))):
        with pytest.raises(PublishError, match="publish it under another --name"):
            publish(tmp_path, "vitbn", replace(EXPORTED, config=config))
    assert (tmp_path / "vitbn/config.pbtxt").read_bytes() == before
    assert versions(tmp_path / "vitbn") == [1]


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vitbn").mkdir()
    with pytest.raises(PublishError, match="expected the config of a published model"):
        publish(tmp_path, "vitbn", EXPORTED)


@pytest.mark.parametrize("existing", [False, True], ids=["new model", "next version"])
def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool) -> None:
    repository = tmp_path / "repository"
    if existing:
        publish(repository, "vitbn", EXPORTED)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    real = module.write_atomically

    def full_disk(path: Path, data: bytes) -> None:
        if path.name == "manifest.json":
            raise OSError(28, "No space left on device")
        real(path, data)

    monkeypatch.setattr(module, "write_atomically", full_disk)
    with pytest.raises(OSError, match="No space left"):
        publish(repository, "vitbn", EXPORTED)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_many_publishers_lose_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        published = list(pool.map(lambda i: publish(tmp_path, "vitbn", replace(EXPORTED, onnx=b"%d" % i)), range(24)))
    assert sorted(int(path.name) for path in published) == list(range(1, 25))
    assert {int((path / "model.onnx").read_bytes()) for path in published} == set(range(24))


PUBLISH_FOR_EVER = """
import sys
from pathlib import Path
from export.graph import Exported
from export.repository import publish
from models.config import ModelConfig
manifest = {"rewrites": [], "max_abs_error": 0.0, "checkpoint_sha256": "0", "metrics": {}}
exported = Exported(b"graph" * 100_000, ModelConfig(), manifest, (), ())
publish(Path(sys.argv[1]) / "elsewhere", "vitbn", exported)  # so that the imports are done
print("ready", flush=True)
while True:
    publish(Path(sys.argv[1]) / "repository", "vitbn", exported)
"""


def test_a_publisher_killed_at_any_moment_leaves_only_whole_versions(tmp_path: Path) -> None:
    for delay_s in (0.0, 0.001, 0.003, 0.007, 0.02, 0.3):
        command = [sys.executable, "-c", PUBLISH_FOR_EVER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout
            process.stdout.readline()
            time.sleep(delay_s)
            os.kill(process.pid, signal.SIGKILL)
        assert [path.name for path in (tmp_path / "repository").glob("*")] in ([], ["vitbn"])
    model_dir = tmp_path / "repository" / "vitbn"
    text_format.Parse((model_dir / "config.pbtxt").read_text(), pb.ModelConfig())
    assert versions(model_dir)
    for version in versions(model_dir):
        assert len((model_dir / str(version) / "model.onnx").read_bytes()) == 500_000
        json.loads((model_dir / str(version) / "manifest.json").read_text())


def test_a_published_graph_is_the_exported_one(repository: Path) -> None:
    proto = onnx.load(repository / "vitbn" / "1" / "model.onnx")
    onnx.checker.check_model(proto, full_check=True)
    assert proto.graph.input[0].name == "image"
