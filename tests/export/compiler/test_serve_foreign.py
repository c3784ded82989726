"""A foreign text model: int64, several inputs, any length."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import tritonclient.http as http
from foreign_networks import Encoder, export, parse, run, wrote
from operating import ok, operate

from clients.probing.server_probe import probe_server
from common.sample import Sample
from export.publishing.foreign_artifact import foreign_artifact
from export.publishing.publish import publish
from serving.local_server import running_server


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The exported file, and a repository with its rewritten form `reranker`."""
    folder = tmp_path_factory.mktemp("served")
    onnx.save(export(Encoder()), folder / "in.onnx")
    out, models = folder / "out.onnx", folder / "models"
    wrote(folder / "in.onnx", "-o", out)
    ok(models, "publish", str(out), "--name", "reranker")
    return folder / "in.onnx", models


def test_list_counts_the_weights_beside_the_model(tmp_path: Path) -> None:
    network = parse(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n, 600] a) => (float[n, 600] y) { y = MatMul(a, w) }',
        w=np.ones((600, 600), np.float32),
    )
    ir.save(network, tmp_path / "in.onnx", external_data="in.data")
    publish(tmp_path / "models", "wide", foreign_artifact(tmp_path / "in.onnx"))
    assert ok(tmp_path / "models", "list").splitlines()[1].split()[-3:] == ["1.4", "foreign", "ONNX"]


def test_a_rewritten_file_is_published_with_its_weights(tmp_path: Path) -> None:
    network = parse(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n, 4, 60] a) => (float[n, 4, 60] y) { y = MatMul(a, w) }',
        w=np.ones((60, 60), np.float32),
    )
    ir.save(network, tmp_path / "in.onnx", external_data="in.data")
    out = tmp_path / "out.onnx"
    rewritten = run(tmp_path / "in.onnx", "-o", out, "--read", "y[:,0]")
    assert rewritten.exit_code == 0, rewritten.output
    ok(tmp_path / "models", "publish", str(out))
    version = tmp_path / "models/out/1"
    files = {"model.onnx", "out.onnx.data", "sample.npz", "manifest.json", "config.pbtxt"}
    assert {path.name for path in version.iterdir()} == files
    told = json.loads(out.with_suffix(".json").read_text()) | {"joined_rows": True}
    assert json.loads((version / "manifest.json").read_text()) == told
    (version / "out.onnx.data").write_bytes(bytes(60 * 60 * 4))
    assert "out.onnx.data: expected the SHA-256" in operate(tmp_path / "models", "verify").output


@pytest.mark.slow
@pytest.mark.live
def test_the_server_answers_as_the_original(published: tuple[Path, Path]) -> None:
    original = ort.InferenceSession(published[0])
    with running_server(published[1]) as server:
        client = http.InferenceServerClient(server.http_url)
        for batch, length in ((1, 5), (3, 9)):
            ids = np.random.default_rng(length).integers(0, 50, (batch, length))
            feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
            inputs = [http.InferInput(name, array.shape, "INT64") for name, array in feeds.items()]
            for given, array in zip(inputs, feeds.values(), strict=True):
                given.set_data_from_numpy(array)
            answer = client.infer("reranker", inputs).as_numpy("y")
            np.testing.assert_allclose(answer, original.run(None, feeds)[0], rtol=1e-4, atol=1e-5)
        _compare_with_the_sample(server.http_url, published[1])


def _compare_with_the_sample(url: str, models: Path) -> None:
    """The probe asks the sample's own ids, and finds an answer that is off by a twentieth."""
    (found,) = probe_server(url, timeout_s=10, repositories=[models]).versions
    assert (found.state, found.max_abs_error) == ("right", pytest.approx(0, abs=1e-4))
    assert [each.state for each in probe_server(url, timeout_s=10).versions] == ["not compared"]
    path = models / "reranker" / "1" / "sample.npz"
    whole, sample = path.read_bytes(), Sample.read(path)
    largest = float(np.abs(sample.outputs["y"]).max())
    path.write_bytes(Sample(sample.inputs, {"y": sample.outputs["y"] + np.float32(0.05 * largest)}).to_bytes())
    (found,) = probe_server(url, timeout_s=10, repositories=[models]).versions
    path.write_bytes(whole)
    assert found.state == "wrong"
    assert found.max_abs_error == pytest.approx(0.05 * largest, rel=0.01)
