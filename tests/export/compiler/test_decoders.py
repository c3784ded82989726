from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from decoder_networks import PRESENT, check_answers, export, feeds
from foreign_networks import manifest_of, parse
from numpy.typing import NDArray

from export.compiler.graph.requested_output_parts import parse_read
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.operators.costs import graph_work
from export.compiler.passes.prepare import prepare
from export.compiler.pipeline import cost_sizes, model_work
from export.compiler.proof.runner import Runner

Array = NDArray[Any]
LENGTHS = [(batch, new, past) for batch in (1, 2) for new in (1, 2, 5, 33) for past in (0, 7)]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("decoder") / "model.onnx"
    onnx.save(export("new", 18), path)  # which another test exports too
    return path


def cut(path: Path, out: Path, *reads: str) -> dict[str, Any]:
    """Returns the manifest."""
    return manifest_of(path, "-o", out, *(argument for read in reads for argument in ("--read", read)))


def check_same(before: Path, after: Path, part: Callable[[Array], Array], kept: list[str]) -> None:
    plain, rewritten = Runner(before), Runner(after)
    assert [value.name for value in plain.session.get_inputs()] == [
        value.name for value in rewritten.session.get_inputs()
    ]
    for batch, new, past in LENGTHS:
        expected = plain(given := feeds(batch, new, past))
        part_of_it = {"logits": part(expected["logits"]), **{name: expected[name] for name in kept}}
        check_answers(part_of_it, rewritten(given))


@pytest.mark.slow
@pytest.mark.parametrize(("exporter", "opset"), [("old", 17), ("new", 18)])
def test_the_last_row_of_a_decoder_cuts_its_last_layer_and_its_head(exporter: str, opset: int, tmp_path: Path) -> None:
    onnx.save(export(exporter, opset), path := tmp_path / "model.onnx")
    manifest = cut(path, out := tmp_path / "last.onnx", "logits[:,-1:]", "*")
    assert len(manifest["sites"]["read-rows"]) == 8  # queries, scores, pooled, output, three of the MLP, head
    assert manifest["macs"]["read-rows"] < 0.75 * manifest["macs"]["before"]
    assert manifest["proofs"][0]["precision"] == "float64"
    assert "past=0" in manifest["proof_inputs"]
    assert "new=1, " in manifest["proof_inputs"]
    check_same(path, out, lambda logits: logits[:, -1:], PRESENT)


PARTS: list[tuple[str, Callable[[Array], Array]]] = [
    ("logits[:,-3:]", lambda logits: logits[:, -3:]),
    ("logits[0:3,0]", lambda logits: logits[0:3, 0]),
    ("logits[:,-1,[9,2]]", lambda logits: logits[:, -1][:, [9, 2]]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("read", "part"), PARTS)
def test_a_read_is_numpy_s_slice_of_inputs_of_any_length(
    read: str, part: Callable[[Array], Array], decoder: Path, tmp_path: Path
) -> None:
    cut(decoder, out := tmp_path / "part.onnx", read, "present.*")
    check_same(decoder, out, part, PRESENT)
    if "[9,2]" in read:  # two columns, as of a reranker, cut its head
        shapes = [tuple(tensor.dims) for tensor in onnx.load(out).graph.initializer]
        assert (16, 2) in shapes
        assert (16, 40) not in shapes


@pytest.mark.slow
@pytest.mark.parametrize("read", ["logits[:,3]", "logits[:,-4]"])
def test_a_row_that_an_input_lacks_fails(read: str, decoder: Path, tmp_path: Path) -> None:
    cut(decoder, out := tmp_path / "row.onnx", read)
    runner = Runner(out)
    assert [value.name for value in runner.session.get_outputs()] == ["logits"]
    assert runner(feeds(2, 4, 3))["logits"].shape == (2, 40)
    for new in (1, 2, 3):
        with pytest.raises(Exception, match="expected the file to run"):
            runner(feeds(2, new, 3))


def test_reads_are_written_as_numpy_writes_them() -> None:
    for text in ("logits[:,-1,[5,3]]", "y", "y[0]", "y[:,0]", "y[:,-3:]", "y[1:3,-1]", "present.*", "y[[1,2],0]"):
        assert str(parse_read(text)) == text


def test_multiplications_behind_a_mask_cut_from_a_table_are_counted() -> None:
    """As GPT-Neo writes it: the sizes of the part do not follow from the symbols of the inputs."""
    text = """<ir_version: 8, opset_import: ["": 18]>
    g (float[b, n, 8] x, float[b, p, 8] past_key) => (float[b, n, 8] y)
    <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, float fill = {-10000.0}> {
        k = Concat <axis = 1> (past_key, x) turned = Transpose <perm = [0, 2, 1]> (k)
        scores = MatMul (x, turned) n = Shape <start = 1, end = 2> (x) t = Shape <start = 1, end = 2> (k)
        first = Sub (t, n) rows = Slice (table, first, t, zero) part = Slice (rows, zero, t, one)
        seen = Unsqueeze (part, zero) masked = Where (seen, scores, fill) a = Softmax (masked) h = MatMul (a, k)
        y = MatMul (h, w)
    }"""
    prepare(model := parse(text, table=np.tri(512, dtype=bool), w=np.ones((8, 8), np.float32)))
    assert cost_sizes(model.graph, {"b": 2}) == {"b": 2, "n": 128, "p": 0}
    for new, past in ((128, 0), (100, 28), (1, 60)):
        total = 2 * (2 * new * (past + new) * 8 + new * 64)
        assert model_work(model, sizes := {"b": 2, "n": new, "p": past}).macs == total
    assert graph_work(Shapes(model.graph, sizes)).macs != total  # the symbols alone do not tell


def test_products_are_counted_where_the_usual_sizes_do_not_fit_together() -> None:
    """As Mamba's loop, unrolled over a drawn length: only that length runs."""
    text = """<ir_version: 8, opset_import: ["": 18]>
    g (float[b, n, 8] x, float[b, m, 8] z, float[b, 9, 8] nine) => (float[b, n, 8] y) {
        s = Add (x, z) h = MatMul (s, w) t = Add (h, nine) y = MatMul (t, w)
    }"""
    prepare(model := parse(text, w=np.ones((8, 8), np.float32)))
    assert model_work(model, cost_sizes(model.graph, {})).total == (128 + 9) * 8 * 8


def test_nodes_may_be_out_of_order(tmp_path: Path) -> None:
    """As ONNX Runtime's own float16 converter writes them."""
    nodes = "h = MatMul(a, w) r = Relu(h) y = MatMul(r, w)"
    text = f'<ir_version: 8, opset_import: ["": 18]> g (float[n, s, 4] a) => (float[n, s, 4] y) {{ {nodes} }}'
    proto = ir.to_proto(parse(text, w=np.ones((4, 4), np.float32)))
    turned = list(reversed(proto.graph.node))
    del proto.graph.node[:]
    proto.graph.node.extend(turned)
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    cut(path, tmp_path / "out.onnx", "y[:,-1]")
