"""Constants travel along the residual stream to layers that add them at no cost.

In: any graph. Out: the same outputs, with fewer sums. `shifts` has the equations. First the bias b of a layer that is
wider than its tokens, as of queries, keys and values behind a folded norm, or of absorbed queries: where s W = -b has a
solution, the tokens X become X - s, and (X - s) W is X W + b. Their sum before, a norm's bias or a layer's bias behind
a residual, makes them so at no cost. Then each bias whose constant later sums take up: that of an output projection
goes into the biases of the feed-forward layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.affine import is_normalised
from export.compiler.analyses.bias_shifts import Shifts
from export.compiler.errors import Refused, Site
from export.compiler.graph.constants import UNROUNDED, Array, Constants, constant, is_constant
from export.compiler.graph.def_use import made_by, made_of, readers, remove_unused
from export.compiler.graph.shapes import Shapes
from export.compiler.operators.table import RESHAPES
from export.compiler.passes.outcome import Outcome

ROUNDING = 1e4 * np.finfo(np.float64).eps  # of a solution, relative to the bias
SOME = 1e-3  # a constant that stands for any


def carry_biases(model: ir.Model, sizes: Mapping[str, int]) -> Outcome:
    sites: list[Site] = []
    refusals: list[Site] = []
    for attempt in (_without_wide_bias, _without_bias):
        nodes = list(model.graph)
        for position, node in enumerate(nodes):
            shapes = Shapes(model.graph, sizes)
            if node.graph is None or not _is_bias(shapes, node):
                continue
            try:
                shifts = attempt(shapes, node, nodes[position:])
            except Refused as refused:
                refusals.append(refused.refusal)
                continue
            if shifts is None:
                continue
            name = node.outputs[0].name or ""
            _apply(model.graph, shifts, node)
            sites.append(Site(name, "Add", _told(len(shifts.constants) - 1)))
            remove_unused(model)
    return Outcome(tuple(sites), tuple(refusals))


def _told(sums: int) -> str:
    """`sums`: those behind the bias that take its constant up. A softmax gives the same without that of its keys."""
    if not sums:
        return "left out: no answer depends on it"
    return "carried to a sum that was there" if sums == 1 else f"carried to {sums} sums that were there"


def _is_bias(shapes: Shapes, node: ir.Node) -> bool:
    """Whether it adds a row of float32 or double to a value of its shape, which is no norm in single operators."""
    if node.op_type != "Add" or node.domain or node.outputs[0].dtype not in UNROUNDED:
        return False
    try:
        term = Shifts(shapes).term(node)
    except Refused:  # a rank is unknown
        return False
    scaled = term[0].producer() if term is not None else None
    if scaled is not None and any(is_normalised(value) for value in scaled.inputs if value is not None):
        return False
    return term is not None and term[1].shape[-1] == term[1].size > 1 and not node.outputs[0].is_graph_output()


def _without_wide_bias(shapes: Shapes, node: ir.Node, later: Sequence[ir.Node]) -> Shifts | None:
    """None for a bias of neither a widening layer nor absorbed queries. Raises Refused."""
    term = Shifts(shapes).term(node)
    product = made_by(term[0], "MatMul") if term is not None else None
    tokens, weight = (product.inputs[0], constant(product.inputs[1])) if product is not None else (None, None)
    if term is None or tokens is None or weight is None or weight.ndim != 2:
        return None
    if weight.shape[0] >= weight.shape[1] and not _asks(node, tokens):
        return None
    bias = term[1].reshape(-1)
    _shifted(shapes, tokens, np.full(weight.shape[0], SOME))  # refuses most graphs before the costly solution
    shift = _solution(weight, -bias)
    if shift is None:
        raise Refused.at(node, "no constant of the tokens gives this bias")
    shifts = _shifted(shapes, tokens, shift)
    shifts.constants[node] = np.zeros(bias.size)
    return shifts


def _shifted(shapes: Shapes, tokens: ir.Value, shift: Array) -> Shifts:
    """What follows if the tokens lose `shift`, a constant of their features. Raises Refused."""
    shifts = Shifts(shapes)
    _take_off(shifts, tokens, shift.reshape((1,) * (shapes.rank(tokens) - 1) + (-1,)))
    shifts.follow(shapes.graph)
    return shifts


def _solution(weight: Array, wanted: Array) -> Array | None:
    """s with s W = `wanted`, to double's rounding."""
    rounding, rows = ROUNDING * max(1.0, float(np.abs(wanted).max())), len(weight) + 1
    few = np.asarray(np.linalg.qr(np.column_stack([weight.T, wanted])[:rows], mode="r"))
    if len(few) == rows and abs(few[-1, -1]) > 2 * np.sqrt(rows) * rounding:
        return None  # nothing solves even as many equations as there are features and one more
    orthogonal, triangle = np.linalg.qr(weight.T)
    if triangle.shape[0] == triangle.shape[1] and np.abs(np.diag(triangle)).min() > ROUNDING:
        shift = np.linalg.solve(triangle, orthogonal.T @ wanted)
    else:  # as many solutions as directions that no query sees; the shortest
        shift = np.linalg.lstsq(weight.T, wanted, rcond=None)[0]
    return np.asarray(shift) if np.abs(shift @ weight - wanted).max() <= rounding else None


def _asks(node: ir.Node, tokens: ir.Value) -> bool:
    """Whether the sum becomes the queries of keys that are the tokens themselves."""
    joined = [*readers(node.outputs[0])]
    if len(joined) != 1 or joined[0].op_type not in RESHAPES:
        return False
    products = [use.node for use in joined[0].outputs[0].uses() if use.idx == 0 and use.node.op_type == "MatMul"]
    return [made_of(product.inputs[1], "Transpose") for product in products] == [tokens]


def _take_off(shifts: Shifts, value: ir.Value, array: Array) -> None:
    """Lets the sums that make `value` add `array` less; raises Refused without such a sum."""
    maker = value.producer()
    if maker is None:
        raise Refused.of(value, "is given, and no sum before it takes a constant off")
    if value.index() or not shifts.add_at(maker, -array):
        terms = [term for term in maker.inputs if term is not None and not is_constant(term)]
        if maker.op_type != "Add" or not any(shifts.add_before(term, maker, -array) for term in terms):
            raise Refused.of(value, "makes the tokens and adds no constant")
    shifts.shift(value, array)


def _without_bias(shapes: Shapes, node: ir.Node, later: Sequence[ir.Node]) -> Shifts | None:
    """Raises Refused."""
    shifts = Shifts(shapes)
    term = shifts.term(node)
    if term is None:
        return None
    shifts.shift(node.outputs[0], term[1])
    shifts.follow(later)
    shifts.constants[node] = np.zeros(term[1].size)
    return shifts


def _apply(graph: ir.Graph, shifts: Shifts, dropped: ir.Node) -> None:
    constants = Constants(graph)
    for node, array in shifts.constants.items():
        out = node.outputs[0]
        term = next((value for value in node.inputs if value is not None and not is_constant(value)), None)
        if node is dropped and term is not None:
            ir.convenience.replace_all_uses_with(out, term)
            continue
        place = _place(node)
        while array.ndim > 1 and array.shape[0] == 1 and node.op_type == "Add":
            array = array[0]
        node.replace_input_with(place, constants.add(np.asarray(array), f"{out.name}_carried", out.dtype))


def _place(node: ir.Node) -> int:
    """Of the constant among a node's inputs."""
    if node.op_type == "Add":
        return next(position for position, value in enumerate(node.inputs) if is_constant(value))
    if node.op_type == "Gemm" and len(node.inputs) < 3:
        node.resize_inputs(3)
    return 0 if node.op_type == "Expand" else 2
