"""Random graphs with a mask: packed, they never answer otherwise, whatever the mask hides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from test_onnx_operators import runner

from export.compiler.analyses import token_mixing
from export.compiler.errors import NotSupported
from export.compiler.graph.attributes import attribute_int, axes_of
from export.compiler.pipeline import optimise
from export.compiler.proof.masks import MANY, draw_masks

Array = NDArray[Any]

WIDE = 4
SIZES = [(6, 7), (1, 1), (1, 5), (3, 1), (4, 4), MANY]
BEFORE = """
    m = Cast<to = 1>(mask) shown = Unsqueeze(m, two) one_less = Sub(unit, m) down = Mul(one_less, lowest)
    hides = Unsqueeze(down, one) weak_row = Mul(one_less, small) weak = Unsqueeze(weak_row, one)
    kept = Cast<to = 9>(shown) size = Shape(mask) length = Gather(size, one) places = Slice(table, zero, length, one)
    start = MatMul(x, w)
"""
STEPS = [  # with {x}, {z} earlier values (texts, tokens, features), {k} a number
    "{y} = Relu({x})",
    "{y} = Add({x}, {z})",
    "{y} = Mul({x}, {z})",
    "{y} = MatMul({x}, w)",
    "{y} = Add({x}, places)",
    "{y} = LayerNormalization<axis = 2>({x}, v)",
    "{y} = Mul({x}, shown)",
    "{y} = Where(kept, {x}, lowest)",
    "{y} = Where(kept, {z}, {x})",
    "{y} = Softmax<axis = 1>({x})",
    "{y} = Softmax<axis = 2>({x})",
    "{y} = CumSum({x}, first)",
    "p{k} = ReduceSum({x}, one) {y} = Add(p{k}, {z})",
    "p{k} = ReduceMax({x}, one) {y} = Add(p{k}, {z})",
    "p{k} = ReduceMean({x}, one) {y} = Add(p{k}, {z})",
    "p{k} = Gather<axis = 1>({x}, zero) {y} = Add(p{k}, {z})",
    "p{k} = Slice({x}, minus, far, one) {y} = Mul(p{k}, {z})",
    "t{k} = Transpose<perm = [0, 2, 1]>({x}) s{k} = MatMul({z}, t{k}) b{k} = Add(s{k}, hides) p{k} = Softmax(b{k}) "
    "{y} = MatMul(p{k}, {x})",
    "t{k} = Transpose<perm = [0, 2, 1]>({x}) s{k} = MatMul({z}, t{k}) b{k} = Add(s{k}, hides) p{k} = Softmax(b{k}) "
    "{y} = MatMul(p{k}, {z})",
    "t{k} = Transpose<perm = [0, 2, 1]>({x}) s{k} = MatMul({z}, t{k}) b{k} = Add(s{k}, weak) p{k} = Softmax(b{k}) "
    "{y} = MatMul(p{k}, {x})",
    "t{k} = Transpose<perm = [0, 2, 1]>({x}) s{k} = MatMul({z}, t{k}) p{k} = Softmax(s{k}) {y} = MatMul(p{k}, {x})",
    "t{k} = Transpose<perm = [0, 2, 1]>({x}) s{k} = MatMul({z}, t{k}) b{k} = Add(s{k}, hides) p{k} = Softmax(b{k}) "
    "q{k} = Gather<axis = 1>(p{k}, zero) r{k} = MatMul(q{k}, {x}) {y} = Add(r{k}, {z})",
    "h{k} = Reshape({x}, heads) q{k} = Transpose<perm = [0, 2, 1, 3]>(h{k}) g{k} = Relu(q{k}) "
    "u{k} = Transpose<perm = [0, 2, 1, 3]>(g{k}) {y} = Reshape(u{k}, joined)",
    "f{k} = Reshape({x}, flat) g{k} = Gemm(f{k}, w, v) s{k} = Shape({x}) {y} = Reshape(g{k}, s{k})",
    "c{k} = Concat<axis = 2>({x}, {z}) {y} = Slice(c{k}, one, five, two)",
]
LAST = [
    "p = Mul({x}, shown) y = ReduceSum<keepdims = 0>(p, one)",
    "y = Gather<axis = 1>({x}, zero)",
    "y = Slice({x}, minus, far, one)",
    "p = Where(kept, {x}, lowest) y = ReduceMax<keepdims = 0>(p, one)",
    "y = Mul({x}, shown)",
    "y = ReduceSum<keepdims = 0>({x}, one)",
    "y = Relu({x})",
]


def constants() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    numbers = {"zero": [0], "one": [1], "two": [2], "five": [5], "minus": [-1], "far": [1 << 40]}
    shapes = {"heads": [0, 0, 2, 2], "joined": [0, 0, WIDE], "flat": [-1, WIDE]}
    return {
        **{name: np.array(held) for name, held in (numbers | shapes).items()},
        "first": np.array(1),
        "unit": np.array(1, np.float32),
        "lowest": np.array(-1e9, np.float32),
        "small": np.array(-2, np.float32),
        "w": rng.standard_normal((WIDE, WIDE)).astype(np.float32) / 2,
        "v": rng.standard_normal(WIDE).astype(np.float32),
        "table": rng.standard_normal((1, 64, WIDE)).astype(np.float32),
    }


def graph(seed: int) -> onnx.ModelProto:
    rng, values, nodes = np.random.default_rng(seed), ["start"], [BEFORE]
    for k in range(int(rng.integers(1, 6))):
        pair = [values[int(rng.integers(len(values)))] for _ in range(2)]
        nodes.append(STEPS[int(rng.integers(len(STEPS)))].format(x=pair[0], z=pair[1], y=f"x{k}", k=k))
        values.append(f"x{k}")
    nodes.append(LAST[int(rng.integers(len(LAST)))].format(x=values[-1]))
    head = '<ir_version: 8, opset_import: ["": 18]> g (float[b, s, 4] x, int64[b, s] mask) => (float y)'
    proto = onnx.parser.parse_model(f"{head} {{ {' '.join(nodes)} }}")
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    for name, array in constants().items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return proto


def check(seed: int) -> bool:
    """Whether the graph was packed."""
    proto = graph(seed)
    try:
        made = optimise(ir.from_proto(proto), packed="mask")
    except NotSupported:
        return False
    if not made.steps[-1].sites:
        return False
    before, after = runner(proto), runner(ir.to_proto(made.model))
    for number, (texts, length) in enumerate(SIZES):
        x = np.random.default_rng(number).standard_normal((texts, length, WIDE)).astype(np.float32)
        feeds = {"x": x, "mask": draw_masks(texts, length, seed + number)}
        expected, found = before.run(None, feeds)[0], after.run(None, feeds)[0]
        limit = 1e-3 * np.abs(expected).max(initial=1, where=np.isfinite(expected))
        same = expected.shape == found.shape and np.allclose(found, expected, atol=limit, rtol=1e-3, equal_nan=True)
        assert same, f"graph {seed} at {texts}, {length}"
    return True


@pytest.mark.slow
def test_no_random_graph_answers_otherwise() -> None:
    assert sum(map(check, range(200))) > 25


def trust_softmax(patch: pytest.MonkeyPatch) -> None:
    def softmax(shapes: Any, node: ir.Node, roles: Any) -> token_mixing.Join:
        axis = attribute_int(node, "axis", -1) % shapes.rank(node.outputs[0])
        return token_mixing.Join(axes={axis: {0: axis}}, zero=frozenset({axis}))

    patch.setitem(token_mixing.RULES, "Softmax", softmax)


def trust_sums(patch: pytest.MonkeyPatch) -> None:
    def reduce(shapes: Any, node: ir.Node, roles: Any) -> token_mixing.Join:
        return token_mixing.Join(done={(0, axis) for axis in axes_of(node) or []})

    patch.setitem(token_mixing.RULES, "ReduceSum", reduce)


@pytest.mark.slow
@pytest.mark.parametrize("plant", [trust_softmax, trust_sums])
def test_a_planted_wrong_rule_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="graph"):
        list(map(check, range(200)))
