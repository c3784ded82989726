from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from foreign_networks import parse, run


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
