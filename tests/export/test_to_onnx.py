import json
import re
import shutil
import socket
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import invoke, ok
from random_networks import saved

from clients.classifier import Classifier, Options
from export.engines import openvino_engine
from export.engines.openvino_engine import has_bfloat16
from export.publishing.publish import read_config
from export.to_onnx import export
from models.catalog import relative
from models.data import load_digits
from models.networks.config import ModelConfig
from serving.local_server import running_server

run = partial(invoke, export)


def test_beside_a_running_server_it_names_the_command_that_serves_the_version(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repo"
    arguments = ("--checkpoint", trained, "--repository", repository, "--name", "mine")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setattr("export.to_onnx.DEFAULT_SERVER", listening.getsockname())
        command = f"vitbn repository promote mine 1 --repository {repository}"
        assert ok(export, *arguments).output.endswith(f"Let the running server serve it: {command}\n")
    assert "promote" not in ok(export, *arguments).output, "no server runs there any more"


def test_output_writes_only_the_file_its_manifest_and_sample(trained: Path, tmp_path: Path) -> None:
    ok(export, "--rewrites", "none", "--checkpoint", trained, "--output", tmp_path / "plain.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain.json", "plain.npz", "plain.onnx"]
    assert json.loads((tmp_path / "plain.json").read_text())["rewrites"] == []
    assert any(node.op_type == "BatchNormalization" for node in onnx.load(tmp_path / "plain.onnx").graph.node)


@pytest.mark.slow
def test_the_first_blocks_of_the_published_checkpoint_are_proved_and_published(
    reference_dir: Path, tmp_path: Path
) -> None:
    options = ("--rewrites", "all", "--repository", tmp_path)
    result = ok(export, "--checkpoint", reference_dir / "vitbn.pth", "--depth", 1, *options)
    assert "vitbn, depth 1" in result.output
    assert "never saw a batch" not in result.output
    assert "rewritten, float64: max |error|" in result.output
    assert "(1e-10 of the largest logit)" in result.output
    single = r"ONNX, float32: max \|error\| \S+ where the network's own is \S+, tolerance \S+ \(1e-05 of"
    assert re.search(single, result.output)
    assert (tmp_path / "vitbn/1/model.onnx").is_file()


@pytest.mark.slow
def test_untrained_blocks_are_named(reference_dir: Path, tmp_path: Path) -> None:
    options = ("--rewrites", "all", "--output", tmp_path / "m.onnx")
    result = ok(export, "--checkpoint", reference_dir / "vitbn.pth", "--depth", 2, *options)
    assert "Warning:" in result.output
    assert "blocks.1 never saw a batch" in result.output


@pytest.mark.slow
@pytest.mark.parametrize("model", ["dnn", "dnnbn"])
def test_networks_without_anything_to_rewrite_but_norms(model: str, tmp_path: Path) -> None:
    saved(tmp_path / "x.safetensors", ModelConfig(model=model))
    result = ok(
        export, "--rewrites", "all", "--checkpoint", tmp_path / "x.safetensors", "--output", tmp_path / "x.onnx"
    )
    assert f"Read {tmp_path / 'x.safetensors'}: {model}\n" in result.output
    assert next(line for line in result.output.splitlines() if "fold-affine" in line).endswith("after it")
    assert not any(node.op_type == "BatchNormalization" for node in onnx.load(tmp_path / "x.onnx").graph.node)


def test_paths_are_shown_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert relative(tmp_path / "models" / "x.safetensors") == Path("models", "x.safetensors")
    assert relative(tmp_path.parent / "x.safetensors") == tmp_path.parent / "x.safetensors"
    assert relative(Path("x.safetensors")) == Path("x.safetensors")


@pytest.mark.slow
def test_a_shipped_checkpoint_by_name(tmp_path: Path) -> None:
    ok(export, "--model", "vitbn-tiny", "--rewrites", "all", "--repository", tmp_path / "repository")
    assert sorted(path.name for path in (tmp_path / "repository").iterdir()) == [".lock", "vitbn-tiny"]


def test_openvino_passes_the_gate_and_is_served_as_a_model_of_its_own(
    trained: Path, repository: Path, tmp_path: Path
) -> None:
    shutil.copytree(repository, tmp_path, dirs_exist_ok=True)
    options = ("--rewrites", "all", "--checkpoint", trained, "--repository", tmp_path)
    result = ok(export, *options, "--backend", "openvino", "--threads", 1)
    assert "in ONNX Runtime, 359 images" in result.output
    config = read_config(tmp_path / "vitbn_openvino")
    assert (config.backend, config.default_model_filename, config.max_batch_size) == ("openvino", "model.onnx", 0)
    assert list(config.input[0].dims) == [-1, 1, 28, 28]
    assert config.parameters["INFERENCE_NUM_THREADS"].string_value == "1"
    assert ("HINT_BF16" in config.parameters) == has_bfloat16()
    with running_server(tmp_path) as server:
        answers = []
        for name in ("vitbn", "vitbn_openvino"):
            with Classifier(Options(server.http_url), name) as classifier:
                answers.append(classifier.logits(load_digits().test_images[:300]))
    assert np.abs(answers[0] - answers[1]).max() < (0.5 if has_bfloat16() else 1e-4)
    assert (answers[0].argmax(1) == answers[1].argmax(1)).mean() > 0.98


def test_openvino_that_costs_too_much_is_not_published(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_engine, "openvino_classifier", lambda data, bfloat16: lambda x: np.zeros((len(x), 10)))
    result = run("--checkpoint", trained, "--repository", tmp_path / "repo", "--backend", "openvino")
    assert result.exit_code == 1
    assert "OpenVINO: expected a drop of at most 0.1 points, found test accuracy" in result.output
    assert not (tmp_path / "repo").exists()
