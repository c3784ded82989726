from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from foreign_networks import DIM, Encoder, export, manifest_of, parse, run, wrote
from torch import nn

from export.compiler import pipeline
from export.compiler.graph.files import weights_by_place


@pytest.mark.slow
def test_weights_beside_the_file_stay_beside_it(encoder: Path, tmp_path: Path) -> None:
    onnx.save(
        onnx.load(encoder), tmp_path / "in.onnx", save_as_external_data=True, location="in.data", size_threshold=0
    )
    out = tmp_path / "out" / "out.onnx"
    result = wrote(tmp_path / "in.onnx", "-o", out)
    assert (out.parent / "out.onnx.data").stat().st_size > out.stat().st_size / 10
    assert f"Wrote {out} and {out}.data (" in result.output
    assert ort.InferenceSession(out).get_outputs()[0].name == "y"


@pytest.mark.slow
def test_a_copied_folder_s_file_is_replaced_with_its_weights(encoder: Path, tmp_path: Path) -> None:
    """As the page has it: cp -r model fast. Another's weights of that name are no part of the file."""
    for folder in ("model", "fast", "strange"):
        (tmp_path / folder).mkdir()
        place = tmp_path / folder / "model.onnx"
        where = "other" if folder == "strange" else "model.onnx.data"
        onnx.save(onnx.load(encoder), place, save_as_external_data=True, location=where, size_threshold=0)
    (tmp_path / "strange/model.onnx.data").write_bytes(b"a stranger's")
    wrote(tmp_path / "model/model.onnx", "-o", tmp_path / "fast/model.onnx")
    assert ort.InferenceSession(tmp_path / "fast/model.onnx").get_outputs()[0].name == "y"
    refused = run(tmp_path / "model/model.onnx", "-o", tmp_path / "strange/model.onnx")
    assert "model.onnx.data: expected nothing or the weights of an export, found a file" in refused.output
    assert (tmp_path / "strange/model.onnx.data").read_bytes() == b"a stranger's"


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
    wrote(cached, "-o", tmp_path / "out.onnx")
    assert ort.InferenceSession(tmp_path / "out.onnx").get_outputs()[0].name == "y"


def test_a_link_that_leads_elsewhere_is_refused(cached: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs" / "weights").rename(tmp_path / "secret")
    cached.with_name("in.data").unlink()
    cached.with_name("in.data").symlink_to("../../secret")
    result = run(cached, "-o", tmp_path / "out.onnx")
    assert (result.exit_code, (tmp_path / "out.onnx").exists()) == (4, False)
    assert f"in.data: expected a link into {tmp_path / 'blobs'}, found a link to {tmp_path / 'secret'}" in result.output


WITHIN = {
    "a function": """g (float[b, n, 4] x) => (float[b, n, 4] y) { y = own.f(x) }
        <domain: "own", opset_import: ["": 17]>
        f (x) => (y) { w = Constant<value = float[4, 4] {0}>() y = MatMul(x, w) }""",
    "a branch": """g (float[b, n, 4] x, bool yes) => (float[b, n, 4] y) {
        always = Constant<value = bool {1}>() h = If(always) <
            then_branch = g1 () => (float[b, n, 4] z) { w = Constant<value = float[4, 4] {0}>() z = MatMul(x, w) },
            else_branch = g2 () => (float[b, n, 4] z) { z = Identity(x) }> y = Relu(h) }""",
}


@pytest.mark.parametrize("text", WITHIN.values(), ids=WITHIN)
def test_weights_within_a_function_or_a_branch(text: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17, "own": 1]> {text}')
    bodies = [*model.functions, *(field.g for node in model.graph.node for field in node.attribute)]
    tensor = next(node.attribute[0].t for body in bodies for node in body.node if node.op_type == "Constant")
    weights = onnx.numpy_helper.from_array(np.arange(16, dtype=np.float32).reshape(4, 4))
    (tmp_path / "weights").write_bytes(weights.raw_data)
    onnx.external_data_helper.set_external_data(weights, "weights", 0, 64)
    weights.ClearField("raw_data")
    tensor.CopyFrom(weights)
    (path := tmp_path / "in.onnx").write_bytes(model.SerializeToString())
    manifest = manifest_of(path, "-o", tmp_path / "out.onnx", "--read", "y[:,-1]")
    assert [*manifest["source"]["files"]] == ["in.onnx", "weights"]
    assert weights_by_place(path) == {"weights": tmp_path / "weights"}
    (tmp_path / "weights").unlink()
    missing = f"expected its weights in {tmp_path / 'weights'}, found no such file; nothing written"
    assert missing in run(path, "-o", tmp_path / "new.onnx", "--read", "y[:,-1]").output


def test_missing_weights_are_named(cached: Path, tmp_path: Path) -> None:
    (weights := tmp_path / "blobs" / "weights").unlink()
    result = run(cached, "-o", tmp_path / "out.onnx")
    assert result.exit_code == 2
    assert result.output == f"Error: {cached}: expected its weights in {weights}, found no such file; nothing written\n"


def test_weights_that_were_cut_off_are_named(cached: Path, tmp_path: Path) -> None:
    (weights := tmp_path / "blobs" / "weights").write_bytes(weights.read_bytes()[:-100])
    result = run(cached, "-o", tmp_path / "out.onnx")
    assert result.exit_code == 2
    size = weights.stat().st_size
    assert f"expected at least {size + 100:,} bytes in {weights}, found {size:,}" in result.output


@pytest.mark.parametrize(
    ("place", "code", "reason"),
    [
        ("../weights", 4, "its weights in its folder, found {folder}/model/../weights"),
        ("/dev/zero", 4, "its weights in its folder, found /dev/zero"),
        ("", 2, "its weights in {folder}/model, found no such file"),
        ("second", 4, "weights in a file of one name, found a hard link, {folder}/model/second"),
    ],
)
def test_weights_at_an_odd_place_are_named(place: str, code: int, reason: str, encoder: Path, tmp_path: Path) -> None:
    (folder := tmp_path / "model").mkdir()
    model = onnx.load(encoder)
    onnx.save(model, path := folder / "in.onnx", save_as_external_data=True, location="first", size_threshold=0)
    (folder / "second").hardlink_to(folder / "first")
    (tmp_path / "weights").write_bytes((folder / "first").read_bytes())
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        next(entry for entry in tensor.external_data if entry.key == "location").value = place
    path.write_bytes(model.SerializeToString())
    result = run(path, "-o", tmp_path / "out.onnx")
    assert result.exit_code == code
    assert result.output == f"Error: {path}: expected {reason.format(folder=tmp_path)}; nothing written\n"


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("offset", "abc", "a number of bytes as offset, found 'abc'"),
        ("offset", "-4", "a number of bytes as offset, found '-4'"),
        ("length", "8", "3,200 bytes for FLOAT (50, 16), found 8"),
    ],
)
def test_a_place_that_is_no_part_of_a_file_is_named(
    key: str, value: str, reason: str, encoder: Path, tmp_path: Path
) -> None:
    onnx.save(onnx.load(encoder), path := tmp_path / "in.onnx", save_as_external_data=True, location="w")
    model = onnx.load(path, load_external_data=False)
    weight = next(each for each in model.graph.initializer if (*each.dims,) == (50, 16))
    next(entry for entry in weight.external_data if entry.key == key).value = value
    path.write_bytes(model.SerializeToString())
    result = run(path, "-o", tmp_path / "out.onnx")
    line = f"Error: {path}: weight {weight.name!r}: expected {reason}; nothing written\n"
    assert (result.exit_code, result.output) == (2, line)


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
    monkeypatch.setattr("export.compiler.proof.memory.SHARE", 1e-6)
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
    assert "expected other files than those that are read" in result.output


TWICE = """<ir_version: 8, opset_import: ["": 17]> g (float[b, n, 32] x) => (float[b, n, 32] y) {{
    {weights} t0 = Mul(x, g0) h0 = MatMul(t0, {w}) r0 = Relu(h0) t1 = Mul(r0, g1) h1 = MatMul(t1, {w}) r1 = Relu(h1)
    t2 = Mul(r1, g2) y = MatMul(t2, {w}) }}"""


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.float16])
@pytest.mark.parametrize("only", ["fold-affine,read-rows,absorb-queries", "read-rows"])
def test_weights_of_8_or_16_bits_stay_so(kind: type[np.generic], only: str, tmp_path: Path) -> None:
    """22.9 MB of a sentence encoder became 90.3."""
    drawn = np.random.default_rng(0).integers(0, 100, (32, 32)).astype(kind)
    weights = {"w": drawn, "s": np.full(32, 0.001, np.float32)}
    gains = {f"g{k}": np.full(32, 0.5 + k, np.float32) for k in range(3)}
    text = TWICE.format(weights="c = Cast<to = 1>(w) v = Mul(c, s)", w="v")
    ir.save(parse(text, **weights, **gains), path := tmp_path / "in.onnx")
    result = wrote(path, "-o", out := tmp_path / "out.onnx", "--read", "y[:,0]", "--only", only)
    assert out.stat().st_size < path.stat().st_size + 1000
    assert f"({path.stat().st_size / 1e6:.1f} -> {out.stat().st_size / 1e6:.1f} MB)" in result.output
    assert drawn.dtype in {onnx.numpy_helper.to_array(each).dtype for each in onnx.load(out).graph.initializer}


def test_a_weight_of_several_layers_is_not_copied_for_a_scale(tmp_path: Path) -> None:
    """84.8 MB of an ALBERT became 256.7, and slower."""
    weights = {f"g{k}": np.full(32, 0.5 + k, np.float32) for k in range(3)}
    weights["w"] = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    ir.save(parse(TWICE.format(weights="", w="w"), **weights), path := tmp_path / "in.onnx")
    result = wrote(path, "-o", out := tmp_path / "out.onnx", "--read", "y[:,0]")
    assert "is not worth a copy of a weight that other nodes read, too" in result.output
    assert out.stat().st_size < path.stat().st_size + 1000
