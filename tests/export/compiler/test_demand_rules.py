"""Rules that say which part of its inputs an operator needs: parts equal the parts of ONNX Runtime's full answer."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import answers, parse, with_read_rows_alone

from export.compiler.graph.shapes import Shapes
from export.compiler.operators import table
from export.compiler.operators.boxes import Box
from export.compiler.operators.demand_rules import Demand, elementwise, everything
from export.compiler.operators.shape_inference import infer

SIZES = ((2, 5), (1, 7), (3, 2))
CUTS = [{1: [-1]}, {0: [0], 1: [0]}, {2: [3, 1]}, {1: [-1], 2: [4]}]
PAD = 't = Relu(x) y = Pad<mode = "{mode}">(t, {arguments})'
JOINED = (
    "q = QuantizeLinear(x, scale, zero) m = com.microsoft.QLinearConcat<axis = {axis}>(scale, zero, q, scale, zero, "
)


def network(nodes: str, cut: dict[int, list[int]], opset: int = 21) -> ir.Model:
    """A graph from x (n, s, 8) to y (n, s, features), of which only rows are read."""
    name, gathers = "y", ""
    for axis in cut:
        gathers += f" p{axis} = Gather<axis = {axis}>({name}, rows{axis})"
        name = f"p{axis}"
    text = f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]> g (float[n, s, 8] x) => (float {name})'
    return parse(
        f"{text} {{ {nodes}{gathers} }}",
        **{"all_axes": [0, 0, 1, 0, 0, 2], "token_axis": [0, 1, 0, 0, 0, 0], "cropped": [0, 0, -2, 0, 0, -1]},
        **{name: np.float32(number) for name, number in {"fill": 0.5, "scale": 0.02, "half": 0.01}.items()},
        **{f"rows{axis}": rows for axis, rows in cut.items()},
        **{"pair": [1, 2], "last": [-1], "zero": np.uint8(3)},
    )


def check(original: ir.Model) -> ir.Model:
    """The model of which only the read rows are computed; its answers are those of the original."""
    rewritten, rng = with_read_rows_alone(original), np.random.default_rng(0)
    for batch, tokens in SIZES:
        feeds = {"x": rng.standard_normal((batch, tokens, 8)).astype(np.float32)}
        (expected,), (part,) = answers(original, feeds), answers(rewritten, feeds)
        assert part.shape == expected.shape
        np.testing.assert_array_equal(part, expected)
    infer(rewritten)
    return rewritten


def computed(model: ir.Model, operator: str) -> tuple[int | None, ...]:
    """The sizes of the operator's output; None where they are free."""
    (node,) = [node for node in model.graph if node.op_type == operator]
    shapes = Shapes(model.graph)
    return tuple(shapes.static(node.outputs[0], axis) for axis in range(3))


@pytest.mark.parametrize("arguments", ["all_axes", "all_axes, fill", "cropped", "pair, , last"])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("cut", CUTS)
def test_axes_that_are_not_padded_are_cut(cut: dict[int, list[int]], mode: str, arguments: str) -> None:

    rewritten = check(network(PAD.format(mode=mode, arguments=arguments), cut))
    sizes = computed(rewritten, "Relu")
    assert sizes == (1 if 0 in cut else None, 1 if 1 in cut else None, 8)


@pytest.mark.parametrize("cut", [{1: [-1]}, {1: [0]}])
def test_a_padded_axis_is_computed_entirely(cut: dict[int, list[int]]) -> None:
    rewritten = check(network(PAD.format(mode="constant", arguments="token_axis"), {**cut, 2: [3, 1]}))
    assert computed(rewritten, "Relu") == (None, None, 2)


def test_pads_in_an_attribute_are_read() -> None:
    rewritten = check(network("t = Relu(x) y = Pad<pads = [0, 0, 1, 0, 0, 2]>(t)", {1: [-1]}, opset=10))
    assert computed(rewritten, "Pad") == (None, 1, 11)


def test_pads_that_are_computed_keep_everything() -> None:
    nodes = "t = Relu(x) n = Shape<start = 0, end = 1>(x) z = Sub(n, n) p = Concat<axis = 0>(z, n, z, z, z, z) "
    rewritten = check(network(f"{nodes} y = Pad(t, p)", {1: [-1]}))
    assert computed(rewritten, "Relu") == (None, None, 8)


def test_a_rule_of_pad_that_cuts_padded_axes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.STANDARD, "Pad", table.Operator(elementwise))
    with pytest.raises(AssertionError):
        check(network(PAD.format(mode="constant", arguments="all_axes"), {2: [3, 1]}))


@pytest.mark.parametrize("cut", CUTS)
def test_axes_that_are_not_concatenated_are_cut(cut: dict[int, list[int]]) -> None:
    rewritten = check(network(f"{JOINED.format(axis=2)} q, half, zero) y = Cast<to = 1>(m)", cut))
    assert computed(rewritten, "QLinearConcat") == (1 if 0 in cut else None, 1 if 1 in cut else None, 16)


@pytest.mark.parametrize("cut", [{1: [-1]}, {1: [0], 2: [3, 1]}])
def test_a_concatenated_axis_is_computed_entirely(cut: dict[int, list[int]]) -> None:
    rewritten = check(network(f"{JOINED.format(axis=1)} q, half, zero) y = Cast<to = 1>(m)", cut))
    assert computed(rewritten, "QLinearConcat") == (None, None, 2 if 2 in cut else 8)


def test_a_rule_of_concat_that_cuts_the_concatenated_axis_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
        parts = dict.fromkeys(range(2, len(node.inputs), 3), demand)
        return Demand(demand, {**everything(node).inputs, **parts})

    monkeypatch.setitem(table.CONTRIB, "QLinearConcat", table.Operator(wrong))
    with pytest.raises(AssertionError):
        check(network(f"{JOINED.format(axis=1)} q, half, zero) y = Cast<to = 1>(m)", {1: [-1]}))
