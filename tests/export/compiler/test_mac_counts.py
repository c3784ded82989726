"""Multiply-accumulates are counted, or named as not counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import parse, wrote
from numpy.typing import NDArray

from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.operators.costs import Work, graph_work
from export.compiler.passes.prepare import prepare
from export.compiler.pipeline import USUAL_LENGTH, cost_sizes, rewrite

Array = NDArray[Any]

STEPS, BATCH, WIDE, HIDDEN = 7, 2, 5, 3
SIZES = {"s": STEPS, "b": BATCH}


def work(nodes: str, **weights: Array) -> Work:
    network = parse(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[s, b, {WIDE}] x) => (float[p, q, r] y) {{ {nodes} }}',
        **weights,
    )
    prepare(network)
    return graph_work(Shapes(network.graph, SIZES))


@pytest.mark.parametrize("inputs", ["float[n, n, 4] x", "float[b, n, 4] x, float[n] places"])
def test_a_length_that_is_also_a_first_axis_is_counted_as_a_length(inputs: str) -> None:
    nodes = "made = MatMul(x, w) y = Identity(made)" + (" z = Neg(places)" if "places" in inputs else "")
    outputs = "float[m, k, 4] y" + (", float[n] z" if "places" in inputs else "")
    network = parse(
        f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => ({outputs}) {{ {nodes} }}',
        w=np.ones((4, 4), np.float32),
    )
    sizes = cost_sizes(network.graph, {})
    assert sizes["n"] == USUAL_LENGTH
    cut = rewrite(network, ["y[:,0]"], sizes=sizes)
    assert "read-rows" in cut.applied
    assert cut.steps[-1].macs * USUAL_LENGTH == cut.macs


def test_a_batch_behind_a_number_stays_a_batch() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[b, 4] x, float[2, b, 4] state) => (float[2, b, 4] y)'
    network = parse(f"{text} {{ y = Add(x, state) }}")
    assert cost_sizes(network.graph, {}) == {"b": 1}


@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("directions", [1, 2])
def test_a_recurrent_layer_multiplies_input_and_state_in_each_step(operator: str, gates: int, directions: int) -> None:
    w, r = (np.ones((directions, gates * HIDDEN, width), np.float32) for width in (WIDE, HIDDEN))
    direction = ", direction = 'bidirectional'".replace("'", '"') if directions == 2 else ""
    nodes = f"o = {operator}<hidden_size = {HIDDEN}{direction}>(x, w, r) y = ReduceSum<keepdims = 0>(o, axes)"
    expected = STEPS * BATCH * directions * gates * HIDDEN * (WIDE + HIDDEN)
    assert work(nodes, w=w, r=r, axes=np.array([1])) == Work(expected)


@pytest.mark.parametrize("equation", ["sbd,sbd->sbd", "...d,...d->...d"])
def test_an_einsum_multiplies_once_for_each_combination_of_its_axes(equation: str) -> None:
    assert work(f'y = Einsum<equation = "{equation}">(x, x)') == Work(STEPS * BATCH * WIDE)


def test_a_product_of_unknown_size_is_named_and_its_weight_counts() -> None:
    nodes = """places = NonZero(x) one = Gather<axis = 0>(places, zero) rows = Reshape(x, flat) few = Gather(rows, one)
        made = MatMul(few, w) known = MatMul(rows, w) top = ReduceMax<keepdims = 0, axes = [0]>(made)
        z = Add(known, top) y = Unsqueeze(z, axes)"""
    given = work(
        nodes,
        zero=np.array(0),
        flat=np.array([-1, WIDE]),
        w=np.ones((WIDE, 4), np.float32),
        axes=np.array([0]),
    )
    assert given.macs == STEPS * BATCH * WIDE * 4
    assert given.uncounted == ("MatMul made",)
    assert given.guessed % (WIDE * 4) == 0


def test_an_operator_without_a_formula_is_named() -> None:
    weights = {"w": np.ones((2, WIDE, 3, 3), np.float32), "o": np.zeros((1, 18, 1, 1), np.float32)}
    network = parse(
        f"""<ir_version: 9, opset_import: ["": 19]> g (float[1, {WIDE}, 3, 3] x) => (float[p, q, h, w] y) {{
            y = DeformConv(x, w, o) }}""",
        **weights,
    )
    prepare(network)
    assert graph_work(Shapes(network.graph, {})) == Work(0, 0, ("DeformConv y",))


def test_what_is_not_counted_is_printed(tmp_path: Path) -> None:
    """153 M were printed of a network with an LSTM, and 1.2 M after a rewrite that saved 1.5 %."""
    network = parse(
        """<ir_version: 8, opset_import: ["": 17]> g (float[b, 6, 4] x) => (float[b, 6, 4] y) {
            n = NonZero(x) m = Transpose<perm = [1, 0]>(n) f = Cast<to = 1>(m) k = MatMul(f, w)
            t = ReduceMax<keepdims = 0>(k) h = MatMul(x, v) y = Add(h, t) }""",
        w=np.ones((3, 4), np.float32),
        v=np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32),
    )
    ir.save(network, tmp_path / "in.onnx")
    result = wrote(tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--read", "y[:,0]", "--dims", "b=1")
    for line in ("at least 96 multiply-accumulates at b=1", "not counted", "MatMul k", "at least 16 "):
        assert line in result.output
