"""What `vitbn rewrite` refuses: an exit code, one line that names file and reason, and nothing written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from foreign_networks import parse
from refusals import check_refused

from export.compare import compare
from export.compiler.passes import PASSES
from export.repository import publish
from export.rewrite import rewrite

OF_ENCODER = [
    ("--only carry-biases", 3, "expected a multiplication to leave out, found none"),
    ("--only read-rows --require absorb-queries", 2, "that run (read-rows), found 'absorb-queries'"),
    ("--only fold", 2, f"expected some of {', '.join(PASSES)}, found 'fold'"),
    ("--dims batch", 2, "expected NAME=SIZE"),
    ("--dims batch=²", 2, "expected NAME=SIZE, found 'batch' and '²'"),
    ("--dims width=3", 2, "expected one of batch, seq, found 'width'"),
    ("--read z[0]", 2, "expected one of the outputs y, found 'z'"),
]
OF_TOKENS = [
    *(
        (f"--read {read}", 2, f"read: expected indices within the shape (B, S, 16), found {read}")
        for read in ("y[0,0,50]", "y[:,2:2]", "y[:,-1,[40]]", "y[:,-1,[-41]]", "y[:,:,16]", "y[:,:,16:]", "y[0,0,0,0]")
    ),
    *(
        (f"--read y[:,{part}]", 2, f"expected a number, START:END or [NUMBER,...] between the brackets, found '{part}'")
        for part in ("[]", "a")
    ),
    ("--read y[:,-1", 2, "read: expected one of the outputs y, found 'y[:,-1'"),
    ("--read past*", 2, "found none like 'past*'"),
    ("--read y[:,-1] --read y", 2, "expected each output once, found an output twice"),
    ("--read y[:,500]", 2, "drawn inputs: read: expected indices within the shape (1, 7, 16), found"),
    ("--read y[:,0] --time", 4, "expected the file to run on its inputs"),
    ("--read y[:,0] --require absorb-queries", 3, "found none: nothing of its kind"),
    ("--read y[:,0] -o out.json", 2, "out.json: expected a name as OUT.onnx, found that of its"),
    ("--read y[:,0] -o out.npz", 2, "out.npz: expected a name as OUT.onnx, found that of its"),
]


@pytest.mark.parametrize(
    ("file", "words", "code", "said"),
    [*(("encoder", *row) for row in OF_ENCODER), *(("tokens", *row) for row in OF_TOKENS)],
)
def test_arguments_that_do_not_fit(
    file: str, words: str, code: int, said: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path = request.getfixturevalue(file)
    check_refused(tmp_path, rewrite, f"{path} -o out.onnx {words}", code, said)


def square(*nodes: tuple[str, list[str], list[str]]) -> onnx.ModelProto:
    """`x` and `y` are float (4, 4)."""
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 4]) for name in ("x", "y")]
    made = [onnx.helper.make_node(*node) for node in nodes]
    proto = onnx.helper.make_model(onnx.helper.make_graph(made, "g", ends[:1], ends[1:]))
    proto.opset_import[0].version = 18
    return proto


def softmax(version: int = 8, **attributes: Any) -> onnx.ModelProto:
    text = """<ir_version: 8, opset_import: ["": 18]>
    g (float[b, n, 4] x) => (float[b, n, 4] y) { h = Softmax(x) y = MatMul(h, w) }"""
    proto = ir.to_proto(parse(text, w=np.ones((4, 4), np.float32)))
    proto.graph.node[0].CopyFrom(onnx.helper.make_node("Softmax", ["x"], ["h"], **attributes))
    proto.ir_version = version
    return proto


def weighted(change: Callable[[onnx.ModelProto, onnx.TensorProto], object]) -> onnx.ModelProto:
    """y = x w, with a changed part."""
    proto = square(("MatMul", ["x", "w"], ["y"]))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w"))
    change(proto, proto.graph.initializer[0])
    return proto


def make_sparse(proto: onnx.ModelProto, weight: onnx.TensorProto) -> None:
    indices = onnx.numpy_helper.from_array(np.arange(16))
    proto.graph.sparse_initializer.add(values=weight, indices=indices, dims=[16])
    del proto.graph.initializer[:]


def make_sparse_constant(proto: onnx.ModelProto, weight: onnx.TensorProto) -> None:
    make_sparse(proto, weight)
    node = onnx.helper.make_node("Constant", [], ["w"], sparse_value=proto.graph.sparse_initializer[0])
    del proto.graph.sparse_initializer[:]
    proto.graph.node.insert(0, node)


def in_a_branch(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    """`y` is the value "h" that the nodes compute of `x`, in the branch of an If that a constant chooses."""
    value = onnx.helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [4, 4])
    branch = onnx.helper.make_graph([*nodes], "branch", [], [value])
    proto = square(("If", ["yes"], ["y"]))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "yes"))
    proto.graph.node[0].attribute.extend(
        onnx.helper.make_attribute(name, branch) for name in ("then_branch", "else_branch")
    )
    return proto


def sparse_in_a_branch() -> onnx.ModelProto:
    indices = onnx.numpy_helper.from_array(np.arange(4))
    values = onnx.numpy_helper.from_array(np.ones(4, np.float32), "w")
    weight = onnx.helper.make_node(
        "Constant", [], ["k"], sparse_value=onnx.SparseTensorProto(values=values, indices=indices, dims=[4])
    )
    return in_a_branch(weight, onnx.helper.make_node("Mul", ["x", "k"], ["h"]))


def answer_a_map(proto: onnx.ModelProto, weight: onnx.TensorProto) -> None:
    number = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    answers = onnx.helper.make_sequence_type_proto(onnx.helper.make_map_type_proto(onnx.TensorProto.INT64, number))
    proto.graph.node.append(onnx.helper.make_node("ZipMap", ["y"], ["m"], domain="ai.onnx.ml"))
    proto.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 3))
    proto.graph.output.append(onnx.helper.make_value_info("m", answers))


def answer_a_label(proto: onnx.ModelProto, _: onnx.TensorProto) -> None:
    proto.ir_version = 8
    proto.graph.initializer.append(onnx.helper.make_tensor("labels", onnx.TensorProto.STRING, [4], list("abcd")))
    proto.graph.node.append(onnx.helper.make_node("ArgMax", ["y"], ["i"], axis=1, keepdims=0))
    proto.graph.node.append(onnx.helper.make_node("Gather", ["labels", "i"], ["label"]))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("label", onnx.TensorProto.STRING, [4]))


def read_a_sequence(proto: onnx.ModelProto, weight: onnx.TensorProto) -> None:
    proto.graph.input.append(onnx.helper.make_tensor_sequence_value_info("words", onnx.TensorProto.FLOAT, ["n"]))


CIRCLE = """<ir_version: 8, opset_import: ["": 18, "own": 1]> g (float[n] x) => (float[n] y) { y = own.f(x) }
<domain: "own", opset_import: ["": 18, "own": 1]> f (x) => (y) { y = own.h(x) }
<domain: "own", opset_import: ["": 18, "own": 1]> h (x) => (y) { y = own.f(x) }"""
OTHER_OPSET = """<ir_version: 8, opset_import: ["": 18, "own": 1]> g (float[n] x) => (float[n] y) { y = own.f(x) }
<domain: "own", opset_import: ["": 13]> f (x) => (y) { y = Relu(x) }"""
SIZE = 1 << 40  # also where a rule looks at each index of an axis
LARGE = f"""<ir_version: 8, opset_import: ["": 18]> g (float[{SIZE}, n, 4] a, float[1, n, 4] b) =>
(float[{SIZE}, n, 4] y) <int64[3] size = {{{SIZE}, 1, 1}}> {{ e = Expand(b, size) h = MatMul(e, w) y = Add(h, a) }}"""
WITHOUT_PRODUCTS = """<ir_version: 8, opset_import: ["": 18]>
g (float[4, 4] x) => (float[4, 4] y) { y = Softmax<axis = 7>(x) }"""
TURNED = """<ir_version: 8, opset_import: ["": 17]>
g (float16[b, n, 4] x) => (float16[n, b, 4] y) { t = Transpose<perm = [1, 0, 2]>(x) y = MatMul(t, w) }"""
TURNED_TWICE = TURNED.replace(
    "y = MatMul(t, w)",
    "u = Transpose<perm = [1, 0, 2]>(t) o = MatMul(u, w) m = MatMul(t, w) y = Transpose<perm = [1, 0, 2]>(m)",
)
OPTIONAL_BIAS = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
g (float[b, n, 4] x, float[4] s) => (float[b, n, 4] y) { y = own.norm(x, s) }
<domain: "own", opset_import: ["": 17]> norm (x, s, bias) => (y) { y = LayerNormalization(x, s, bias) }"""
RUNS = "expected a file that ONNX Runtime runs, found "
FILES: dict[str, tuple[bytes | onnx.ModelProto, int, str]] = {  # content, exit code, parts of the line
    "nothing": (b"", 2, "expected an ONNX model"),
    "half a model": (b"\x08\x07hello", 2, "expected an ONNX model"),
    "text": (b"no protobuf at all", 2, "expected an ONNX model"),
    "a value made twice": (
        square(("MatMul", ["x", "x"], ["y"]), ("Relu", ["x"], ["y"])),
        2,
        "expected an ONNX model, found a graph whose parts do not fit",
    ),
    "an unknown input": (
        square(("MatMul", ["x", "nothing"], ["y"])),
        2,
        "expected inputs of MatMul that are known, found 'nothing'",
    ),
    "a type that is none": (
        weighted(lambda _, weight: setattr(weight, "data_type", 77)),
        2,
        "weight 'w': expected a type of ONNX, found number 77; nothing written",
    ),
    "a weight that was cut off": (
        weighted(lambda _, weight: setattr(weight, "raw_data", weight.raw_data[:-4])),
        2,
        "weight 'w': expected 64 bytes for FLOAT (4, 4), found 60; nothing written",
    ),
    "a weight of numbers that was cut off": (
        weighted(lambda _, weight: weight.CopyFrom(onnx.TensorProto(name="w", data_type=1, dims=[2], float_data=[1]))),
        2,
        "weight 'w': expected 2 numbers for FLOAT (2,), found 1; nothing written",
    ),
    "a negative size": (
        weighted(lambda _, weight: weight.dims.extend([-1])),
        2,
        "weight 'w': expected a type and sizes, found FLOAT (4, 4, -1); nothing written",
    ),
    "a sparse weight": (weighted(make_sparse), 4, "expected dense weights, found the sparse 'w'; nothing written"),
    "a sparse constant": (
        weighted(make_sparse_constant),
        4,
        "expected dense weights, found the sparse 'w'; nothing written",
    ),
    "a bias without a name": (
        square(("LayerNormalization", ["x", "x", ""], ["y"])),
        4,
        "expected a bias, or two inputs, of LayerNormalization, found a bias without a name at node ''",
    ),
    "a bias without a name in a branch": (
        in_a_branch(onnx.helper.make_node("LayerNormalization", ["x", "x", ""], ["h"])),
        4,
        "expected a bias, or two inputs, of LayerNormalization, found a bias without a name at node ''",
    ),
    "a part of a Split without a name": (
        square(("Split", ["x"], ["y", ""])),
        4,
        "expected names for all outputs of Split, found one without a name at node ''; nothing written",
    ),
    "a sparse constant in a branch": (
        sparse_in_a_branch(),
        4,
        "expected dense weights, found the sparse 'k'; nothing written",
    ),
    "a map": (
        weighted(answer_a_map),
        4,
        "output 'm': expected a tensor, found a map, as of ZipMap; nothing written",
    ),
    "no opset": (
        weighted(lambda proto, _: proto.ClearField("opset_import")),
        4,
        "opset: expected 10 to 26, found 0; nothing written",
    ),
    "an output named twice": (
        weighted(lambda proto, _: proto.graph.output.append(proto.graph.output[0])),
        2,
        "expected each output once, found 'y' twice; nothing written",
    ),
    "an old file whose weights are no inputs": (
        weighted(lambda proto, _: setattr(proto, "ir_version", 3)),
        2,
        "IR version 3: expected every weight among the inputs, found 'w' apart; nothing written",
    ),
    "a sequence as an input": (
        weighted(read_a_sequence),
        4,
        "input 'words': expected a tensor of known rank, found Sequence(Tensor(FLOAT)); nothing written",
    ),
    "a circle of nodes": (
        square(("Relu", ["x", "y"], ["z"]), ("Relu", ["z"], ["y"])),
        2,
        "expected no node that needs its own result, found 'z'",
    ),
    "a node without outputs": (
        square(("Relu", ["x"], []), ("Relu", ["x"], ["y"])),
        2,
        "expected outputs of each Relu, found none at node ''",
    ),
    "an output that no node makes": (
        square(("Relu", ["x"], ["z"])),
        2,
        "expected outputs that a node computes, found 'y'",
    ),
    "a name of two lines": (
        square(("own\x1b[31m\noperator", ["x"], ["y"])),
        4,
        "node 'y': expected an operator of ONNX, or of ONNX Runtime that is known, found own\\x1b[31m\\noperator;",
    ),
    "a circle of functions": (
        onnx.parser.parse_model(CIRCLE),
        2,
        "expected no function that needs its own result, found 'f'; nothing written",
    ),
    "a function of another opset": (
        onnx.parser.parse_model(OTHER_OPSET),
        4,
        "expected functions that can be inlined, found one that cannot: … domain '' has version 18 in the model but",
    ),
    "sizes beyond all memory": (
        ir.to_proto(parse(LARGE, w=np.ones((4, 4), np.float32))),
        4,
        f"input 'a': expected a size that fits into memory, found ({SIZE}, 5, 4); nothing written",
    ),
    "an axis that is not there, in a graph that no pass rewrites": (
        ir.to_proto(parse(WITHOUT_PRODUCTS)),
        4,
        f"{RUNS} … must be in [-2 , 1]. Its actual value is: 7",
    ),
    "an axis that is not there": (softmax(axis=7), 4, f"{RUNS} … 'axis' must be in [-3 , 2]. Its actual value is: 7"),
    "an attribute of another type": (
        softmax(axis="a"),
        4,
        f"{RUNS} … Mismatched attribute type in ' : axis'. Expected: 'INT', actual: 'STRING'",
    ),
    "a float16 file at which ONNX Runtime's optimiser ends the process": (
        ir.to_proto(parse(TURNED, w=np.ones((4, 4), np.float16))),
        4,
        f"{RUNS}the end of ONNX Runtime's process; nothing written",
    ),
    "a float16 file whose rewrite ends ONNX Runtime's process": (
        ir.to_proto(parse(TURNED_TWICE, w=np.ones((4, 4), np.float16))),
        4,
        f"the rewritten file: {RUNS}the end of ONNX Runtime's process; nothing written",
    ),
    "a function's optional input as a bias": (
        onnx.parser.parse_model(OPTIONAL_BIAS),
        4,
        f"{RUNS}the end of ONNX Runtime's process; nothing written",
    ),
    "a version of the future": (softmax(99), 4, f"{RUNS}Unsupported model IR version: 99, max supported IR version"),
}


@pytest.mark.timeout(60)
def test_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    ir.save(ir.from_proto(softmax()), tmp_path / "in.onnx")
    line = "Error: pipe: expected an ONNX model, found no regular file; nothing written"
    assert check_refused(tmp_path, rewrite, "pipe -o out.onnx", 2, line).count("\n") == 1
    inputs = "in.onnx -o out.onnx --read y[:,-1] --proof float32 --inputs pipe"
    check_refused(tmp_path, rewrite, inputs, 2, "expected an .npz file of arrays, found another kind of file")


@pytest.mark.parametrize(("content", "code", "said"), FILES.values(), ids=FILES)
def test_files_that_are_damaged(content: bytes | onnx.ModelProto, code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    words = "in.onnx -o out.onnx --read y[:,-1] --proof float32"
    printed = check_refused(tmp_path, rewrite, words, code, f"Error: in.onnx: {said}")
    assert printed.count("\n") == 1
    assert not any(word in printed for word in ("Load model", ".cc:", "::logging", "out.onnx", "EP Error"))


@pytest.mark.parametrize(("command", "words", "code"), [(compare, "in.onnx in.onnx", 3), (publish, "in.onnx", 1)])
def test_strings_are_no_answers(command: click.Command, words: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_bytes(weighted(answer_a_label).SerializeToString())
    (tmp_path / "triton_repo").mkdir()
    check_refused(tmp_path, command, words, code, "output 'label': expected numbers, found tensor(string)")
