from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from click.testing import CliRunner, Result
from foreign_networks import DIM, Encoder, export
from torch import nn

from export.onnx_rewrites import pipeline
from export.rewrite import rewrite


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(rewrite, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("foreign") / "encoder.onnx"
    onnx.save(export(Encoder()), path)
    return path


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("foreign") / "hidden.onnx"
    onnx.save(export(Encoder("hidden")), path)
    return path


@pytest.mark.slow
def test_a_file_is_written_with_its_manifest_and_a_sample(encoder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    result = run(encoder, "-o", out, "--dims", "batch=1,seq=24", "--require", "read-rows,absorb-queries", "--time")
    assert result.exit_code == 0, result.output
    for line in ("multiply-accumulates at batch=1, seq=24", "Proved float64", "Proved float32", "times as fast"):
        assert line in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "out.npz", "out.onnx"]
    manifest = json.loads(out.with_suffix(".json").read_text())
    assert manifest["rewrites"] == ["fold-affine", "read-rows", "absorb-queries"]
    assert manifest["macs"]["absorb-queries"] < 0.56 * manifest["macs"]["before"]
    sample = np.load(out.with_suffix(".npz"))
    feeds = {name[3:]: sample[name] for name in sample.files if name.startswith("in:")}
    np.testing.assert_allclose(ort.InferenceSession(out).run(None, feeds)[0], sample["out:y"], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_read_halves_a_file_of_embeddings(hidden: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert run(hidden, "-o", out).exit_code == 3
    assert not list(tmp_path.iterdir())
    result = run(hidden, "-o", out, "--read", "y[:,0]", "--json")
    assert result.exit_code == 0
    assert json.loads(result.output)["reads"] == ["y[:,0]"]


@pytest.mark.slow
def test_inputs_may_be_given(encoder: Path, tmp_path: Path) -> None:
    given = tmp_path / "given.npz"
    ids = np.arange(12).reshape(2, 6)
    np.savez(given, input_ids=ids, attention_mask=np.ones_like(ids))
    result = run(encoder, "-o", tmp_path / "out.onnx", "--inputs", given, "--json")
    assert json.loads(result.output)["inputs"].endswith(str(given))
    np.savez(given, input_ids=ids)
    assert (
        "expected the inputs input_ids, attention_mask"
        in run(encoder, "-o", tmp_path / "out.onnx", "--inputs", given).output
    )


@pytest.mark.slow
def test_weights_beside_the_file_stay_beside_it(encoder: Path, tmp_path: Path) -> None:
    onnx.save(
        onnx.load(encoder), tmp_path / "in.onnx", save_as_external_data=True, location="in.data", size_threshold=0
    )
    out = tmp_path / "out" / "out.onnx"
    result = run(tmp_path / "in.onnx", "-o", out)
    assert result.exit_code == 0, result.output
    assert (out.parent / "out.onnx.data").stat().st_size > out.stat().st_size / 10
    assert ort.InferenceSession(out).get_outputs()[0].name == "y"


@pytest.fixture
def cached(encoder: Path, tmp_path: Path) -> Path:
    """As Hugging Face's cache: links to `blobs`."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    for folder in (blobs, snapshot):
        folder.mkdir(parents=True)
    onnx.save(onnx.load(encoder), blobs / "model", save_as_external_data=True, location="weights", size_threshold=0)
    linked = onnx.load(blobs / "model", load_external_data=False)
    for tensor in linked.graph.initializer:
        next(entry for entry in tensor.external_data if entry.key == "location").value = "in.data"
    (blobs / "model").write_bytes(linked.SerializeToString())
    (snapshot / "in.onnx").symlink_to("../../blobs/model")
    (snapshot / "in.data").symlink_to("../../blobs/weights")
    return snapshot / "in.onnx"


@pytest.mark.slow
def test_links_of_a_cache_are_followed(cached: Path, tmp_path: Path) -> None:
    result = run(cached, "-o", tmp_path / "out.onnx")
    assert result.exit_code == 0, result.output
    assert ort.InferenceSession(tmp_path / "out.onnx").get_outputs()[0].name == "y"


def test_a_link_that_leads_elsewhere_is_refused(cached: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs" / "weights").rename(tmp_path / "secret")
    cached.with_name("in.data").unlink()
    cached.with_name("in.data").symlink_to("../../secret")
    result = run(cached, "-o", tmp_path / "out.onnx")
    assert (result.exit_code, (tmp_path / "out.onnx").exists()) == (4, False)
    assert f"in.data: expected a link into {tmp_path / 'blobs'}, found a link to {tmp_path / 'secret'}" in result.output


def test_missing_weights_are_named(cached: Path, tmp_path: Path) -> None:
    (weights := tmp_path / "blobs" / "weights").unlink()
    result = run(cached, "-o", tmp_path / "out.onnx")
    assert result.exit_code == 2
    assert result.output == f"Error: {cached}: expected its weights in {weights}, found no such file; nothing written\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--only", "fold-affine"), 3, "2 scales folded, which saves no multiplication"),
        (("--only", "read-rows", "--require", "absorb-queries"), 3, "absorb-queries: expected a place to rewrite"),
        (("--only", "fold"), 2, "expected some of fold-affine, read-rows, absorb-queries, found 'fold'"),
        (("--dims", "batch"), 2, "expected NAME=SIZE"),
        (("--dims", "width=3"), 2, "expected one of batch, seq, found 'width'"),
        (("--read", "z[0]"), 2, "expected one of the outputs y, found 'z'"),
    ],
)
def test_each_refusal_has_its_exit_code(
    encoder: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = run(encoder, "-o", tmp_path / "out.onnx", *arguments)
    assert (result.exit_code, list(tmp_path.iterdir())) == (code, [])
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    for content in (b"", b"\x08\x07hello", b"no protobuf at all"):
        broken.write_bytes(content)
        result = run(broken, "-o", tmp_path / "out.onnx")
        assert result.exit_code == 2
        assert result.output.startswith(f"Error: {broken}: expected an ONNX model")


@pytest.mark.slow
def test_a_failed_proof_writes_nothing(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.onnx_rewrites.proof.FLOAT64_TOLERANCE", 0.0)
    result = run(encoder, "-o", tmp_path / "out.onnx")
    assert (result.exit_code, list(tmp_path.iterdir())) == (5, [])
    assert "expected an error of at most 0e+00" in result.output


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """26 MB, almost all in a file beside the model."""
    network = Encoder()
    network.words = nn.Embedding(400_000, DIM)
    path = tmp_path_factory.mktemp("large") / "large.onnx"
    onnx.save(export(network), path, save_as_external_data=True, location="large.onnx_data", size_threshold=0)
    return path


@pytest.mark.slow
def test_only_weights_that_change_are_read(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    for name in ("numpy", "tobytes", "__array__"):
        called = getattr(ir.ExternalTensor, name)

        def recorded(self: ir.ExternalTensor, *given: Any, called: Any = called) -> Any:
            read.append(self)
            return called(self, *given)

        monkeypatch.setattr(ir.ExternalTensor, name, recorded)
    rewritten = pipeline.rewrite(ir.load(large)).model
    table = rewritten.graph.initializers["words.weight"].const_value
    assert isinstance(table, ir.ExternalTensor)
    assert table.name not in {tensor.name for tensor in read}
    assert 0 < sum(tensor.nbytes for tensor in {tensor.name: tensor for tensor in read}.values()) < 100_000


@pytest.mark.slow
def test_a_proof_without_memory_is_refused_with_the_way_out(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.onnx_rewrites.memory.SHARE", 1e-6)
    out = tmp_path / "out.onnx"
    refused = run(large, "-o", out)
    assert (refused.exit_code, list(tmp_path.iterdir())) == (4, [])
    assert "proof in double: expected to need at most 0.0 GB, found 0.1 GB; --proof float32" in refused.output
    result = run(large, "-o", out, "--proof", "float32", "--json")
    assert [proof["precision"] for proof in json.loads(result.output)["proofs"]] == ["float32"]
    assert out.with_name("out.onnx.data").stat().st_size > 4 * 400_000 * DIM


def test_the_weights_that_are_read_are_not_overwritten(encoder: Path, tmp_path: Path) -> None:
    weights = tmp_path / "out.onnx.data"
    onnx.save(onnx.load(encoder), tmp_path / "in.onnx", save_as_external_data=True, location=weights.name)
    before = weights.read_bytes()
    result = run(tmp_path / "in.onnx", "-o", tmp_path / "out.onnx")
    assert (result.exit_code, weights.read_bytes()) == (2, before)
    assert "expected another file than the weights that are read" in result.output
