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
from foreign_networks import DIM, Encoder, export, parse
from torch import nn

from export.onnx_rewrites import pipeline, proof
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
    refused = run(hidden, "-o", out)
    assert refused.exit_code == 3
    assert refused.output.endswith("if you use only a part of an output, name it: --read 'OUTPUT[:,0]'\n")
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
    assert json.loads(result.output)["proof_inputs"].startswith(f"{given}; drawn at ")
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
    assert f"Wrote {out} and {out}.data (" in result.output
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
    ("arguments", "code", "message"),
    [
        (("--only", "fold-affine"), 3, "2 places rewritten, which saves no multiplication"),
        (("--only", "read-rows", "--require", "absorb-queries"), 2, "that run (read-rows), found 'absorb-queries'"),
        (("--only", "fold"), 2, "expected some of fold-affine, read-rows, absorb-queries, found 'fold'"),
        (("--dims", "batch"), 2, "expected NAME=SIZE"),
        (("--dims", "batch=²"), 2, "expected NAME=SIZE, found 'batch' and '²'"),
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


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            [("MatMul", ["x", "x"], ["y"]), ("Relu", ["x"], ["y"])],
            "an ONNX model, found a graph whose parts do not fit",
        ),
        ([("MatMul", ["x", "nothing"], ["y"])], "inputs of MatMul that are known, found 'nothing'"),
        ([("Relu", ["x", "y"], ["z"]), ("Relu", ["z"], ["y"])], "no node that needs its own result, found 'z'"),
        ([("Relu", ["x"], []), ("Relu", ["x"], ["y"])], "outputs of each Relu, found none at node ''"),
        ([("Relu", ["x"], ["z"])], "outputs that a node computes, found 'y'"),
    ],
)
def test_a_damaged_graph_is_named(nodes: list[tuple[str, list[str], list[str]]], message: str, tmp_path: Path) -> None:
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 4]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node(*node) for node in nodes], "g", ends[:1], ends[1:])
    (path := tmp_path / "in.onnx").write_bytes(onnx.helper.make_model(graph).SerializeToString())
    result = run(path, "-o", tmp_path / "out.onnx")
    assert result.exit_code == 2
    assert result.output.startswith(f"Error: {path}: expected {message}")


@pytest.mark.parametrize(
    ("operator", "attributes", "version", "reason"),
    [
        ("Softmax", {"axis": 7}, 8, "'axis' must be in [-3 , 2]. Its actual value is: 7"),  # written, then refused
        ("Softmax", {"axis": "a"}, 8, "Mismatched attribute type in ' : axis'. Expected: 'INT', actual: 'STRING'"),
        ("Softmax", {}, 99, "found Unsupported model IR version: 99, max supported IR version"),
    ],
)
def test_what_onnx_runtime_refuses_has_its_reason(
    operator: str, attributes: dict[str, Any], version: int, reason: str, tmp_path: Path
) -> None:
    text = """<ir_version: 8, opset_import: ["": 18]>
    g (float[b, n, 4] x) => (float[b, n, 4] y) { h = Softmax(x) y = MatMul(h, w) }"""
    proto = ir.to_proto(parse(text, w=np.ones((4, 4), np.float32)))
    proto.graph.node[0].CopyFrom(onnx.helper.make_node(operator, ["x"], ["h"], **attributes))
    proto.ir_version = version
    (path := tmp_path / "in.onnx").write_bytes(proto.SerializeToString())
    result = run(path, "-o", tmp_path / "out.onnx", "--read", "y[:,0]")
    assert (result.exit_code, list(tmp_path.iterdir())) == (4, [path])
    assert result.output.startswith(f"Error: {path}: expected a file that ONNX Runtime runs, found ")
    assert reason in result.output
    assert not any(word in result.output for word in ("Load model", ".cc:", "::logging", "out.onnx", "EP Error"))


def test_a_name_of_two_lines_is_told_in_one(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("own\x1b[31m\noperator", ["x"], ["y"])]
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 4]) for name in ("x", "y")]
    proto = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:]))
    proto.opset_import[0].version = 18
    (path := tmp_path / "in.onnx").write_bytes(proto.SerializeToString())
    result = run(path, "-o", tmp_path / "out.onnx")
    assert result.exit_code == 4
    reason = "node 'y': expected an operator of ONNX, or of ONNX Runtime that is known, found own [31m operator"
    assert result.output == f"Error: {path}: {reason}; nothing written\n"


def test_a_circle_of_functions_is_named(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 18, "own": 1]> g (float[n] x) => (float[n] y) { y = own.f(x) }
    <domain: "own", opset_import: ["": 18, "own": 1]> f (x) => (y) { y = own.h(x) }
    <domain: "own", opset_import: ["": 18, "own": 1]> h (x) => (y) { y = own.f(x) }"""
    onnx.save(onnx.parser.parse_model(text), path := tmp_path / "in.onnx")
    result = run(path, "-o", tmp_path / "out.onnx")
    assert (result.exit_code, list(tmp_path.iterdir())) == (2, [path])
    assert (
        result.output == f"Error: {path}: expected no function that needs its own result, found 'f'; nothing written\n"
    )


def test_sizes_beyond_all_memory_are_named(tmp_path: Path) -> None:
    """Also where a rule looks at each index of an axis."""
    size = 1 << 40
    nodes = "e = Expand(b, size) h = MatMul(e, w) y = Add(h, a)"
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[{size}, n, 4] a, float[1, n, 4] b) =>
    (float[{size}, n, 4] y) <int64[3] size = {{{size}, 1, 1}}> {{ {nodes} }}"""
    ir.save(parse(text, w=np.ones((4, 4), np.float32)), path := tmp_path / "in.onnx")
    result = run(path, "-o", tmp_path / "out.onnx", "--read", "y[:,-1]", "--proof", "float32")
    assert (result.exit_code, list(tmp_path.iterdir())) == (4, [path])
    reason = f"input 'a': expected a size that fits into memory, found ({size}, 5, 4)"
    assert result.output == f"Error: {path}: {reason}; nothing written\n"


@pytest.mark.slow
def test_a_failed_proof_writes_nothing(encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(proof.TOLERANCES, "float64", 0.0)
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
    assert "expected other files than those that are read" in result.output


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """Of at most 64 tokens; `--read` saves the work of all others."""
    network = parse(
        """<ir_version: 8, opset_import: ["": 17]> g (float[B, S, 16] a) => (float[B, S, 16] y) {
            s = Shape<start = 1, end = 2>(a) p = Slice(places, zero, s) x = Add(a, p)
            h = MatMul(x, w) t = Relu(h) y = MatMul(t, w) }""",
        places=np.ones((64, 16), np.float32),
        zero=np.zeros(1, np.int64),
        w=np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32),
    )
    ir.save(network, tmp_path / "tokens.onnx")
    return tmp_path / "tokens.onnx"


@pytest.mark.parametrize("read", ["y[:,15]", "y[:,12:16]"])
def test_a_read_beyond_the_first_sizes_is_proved_at_larger_ones(tokens: Path, tmp_path: Path, read: str) -> None:
    result = run(tokens, "-o", tmp_path / "out.onnx", "--read", read, "--json")
    assert result.exit_code == 0, result.output
    assert "S=32" in json.loads(result.output)["proof_inputs"]


def test_the_standard_domain_may_have_its_long_name(tokens: Path, tmp_path: Path) -> None:
    proto = onnx.load(tokens)
    proto.opset_import[0].domain = "ai.onnx"
    onnx.save(proto, tokens)
    result = run(tokens, "-o", tmp_path / "out.onnx", "--read", "y[:,0]")
    assert result.exit_code == 0, result.output


def test_a_file_whose_weights_are_inputs_gives_a_valid_file(tokens: Path, tmp_path: Path) -> None:
    proto = onnx.load(tokens)
    proto.ir_version = 3
    for tensor in proto.graph.initializer:
        proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    onnx.checker.check_model(proto)
    onnx.save(proto, tokens)
    result = run(tokens, "-o", tmp_path / "out.onnx", "--read", "y[:,0]")
    assert result.exit_code == 0, result.output
    onnx.checker.check_model(tmp_path / "out.onnx")
    assert [value.name for value in ort.InferenceSession(tmp_path / "out.onnx").get_inputs()] == ["a"]


def test_a_part_of_an_output_that_is_an_input_is_refused(tokens: Path, tmp_path: Path) -> None:
    proto = onnx.load(tokens)
    proto.graph.output.append(proto.graph.input[0])
    onnx.save(proto, tokens)
    result = run(tokens, "-o", tmp_path / "out.onnx", "--read", "y[:,0]", "--read", "a[:,0]")
    assert result.exit_code == 2
    assert "read: expected an output that a node computes, found the input a[:,0]" in result.output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--read", "y[0,0,50]"), 2, "read: expected indices within the shape (B, S, 16), found y[0,0,50]"),
        (("--read", "y[:,2:2]"), 2, "read: expected indices within the shape (B, S, 16), found y[:,2:2]"),
        (("--read", "y[:,500]"), 2, "--dims B=SIZE,S=SIZE: read: expected indices within the shape (1, 7, 16), found"),
        (("--read", "y[:,0]", "--time"), 4, "expected the file to run on its inputs"),
        (("--read", "y[:,0]", "--require", "absorb-queries"), 3, "found none: nothing of its kind"),
        (("--read", "y[:,0]", "-o", "out.json"), 2, "out.json: expected a name as OUT.onnx, found that of its"),
        (("--read", "y[:,0]", "-o", "out.npz"), 2, "out.npz: expected a name as OUT.onnx, found that of its"),
    ],
)
def test_a_refusal_writes_nothing(
    tokens: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, message: str
) -> None:
    monkeypatch.chdir(tokens.parent)
    result = run(tokens, "-o", "out.onnx", *arguments)
    assert (result.exit_code, [*tokens.parent.iterdir()]) == (code, [tokens])
    assert message in result.output


def test_a_manifest_that_cannot_be_written_leaves_nothing(tokens: Path, tmp_path: Path) -> None:
    (tmp_path / "out.json").mkdir()
    result = run(tokens, "-o", tmp_path / "out.onnx", "--read", "y[:,0]")
    assert (result.exit_code, len([*tmp_path.iterdir()])) == (2, 2)
    assert "out.json: expected a file, found a folder" in result.output


def test_given_inputs_are_not_overwritten(tokens: Path, tmp_path: Path) -> None:
    np.savez(given := tmp_path / "out.npz", a=np.ones((1, 4, 16), np.float32))
    before = given.read_bytes()
    result = run(tokens, "-o", tmp_path / "out.onnx", "--inputs", given, "--read", "y[:,0]")
    assert (result.exit_code, given.read_bytes()) == (2, before)
    assert f"expected other files than those that are read, found {given}" in result.output


def test_given_inputs_that_are_no_archive_are_named(tokens: Path, tmp_path: Path) -> None:
    np.savez(given := tmp_path / "given.npz", a=np.ones((1, 4, 16), np.float32))
    whole = given.read_bytes()
    np.save(tmp_path / "single.npy", np.ones(3))
    other = "another kind of file"
    contents = [(whole[:-40], other), (whole[:200] + b"damage" + whole[206:], "Bad CRC-32"), (b"text", other)]
    for content, reason in [*contents, ((tmp_path / "single.npy").read_bytes(), other)]:
        given.write_bytes(content)
        result = run(tokens, "-o", tmp_path / "out.onnx", "--inputs", given, "--read", "y[:,0]")
        assert result.exit_code == 2
        assert f"{given}: expected an .npz file of arrays, found {reason}" in result.output


def test_the_sizes_of_given_inputs_count_as_memory(
    tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("export.onnx_rewrites.memory.free_memory", lambda: 1_000_000)
    np.savez(given := tmp_path / "given.npz", a=np.ones((200, 60, 16), np.float32))
    arguments = tokens, "-o", tmp_path / "out.onnx", "--read", "y[:,0]"
    assert "proof in double: expected to need at most" in run(*arguments, "--inputs", given).output
    assert run(*arguments).exit_code == 0


def test_the_passes_run_once_and_in_their_own_order(tokens: Path) -> None:
    rewritten = pipeline.rewrite(ir.load(tokens), ["y[:,0]"], ("absorb-queries", "read-rows", "read-rows"))
    assert [step.name for step in rewritten.steps] == ["read-rows", "absorb-queries"]
