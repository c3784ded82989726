"""Carries biases along the residual stream to sums with a constant, which add them at no cost.

In: any graph. Out: the same outputs, with fewer sums. A bias b goes to sums before or behind its layer:

    X W + b = (X - s) W,  where s W = -b has a solution      (X + b) + Y + c = X + Y + (c + b)

Before: the bias of a layer with more outputs than inputs, as of queries, keys and values behind a folded norm, or of
absorbed queries. The sum that makes X, as a norm's bias or the bias of the layer before, adds -s as well.
Behind: every bias whose constant later sums can add. That of an output projection goes to the biases of the
feed-forward layers. `bias_shifts` follows what changes in between.

Reads Adds of a row to a value in float32 or float64. Refuses, by the name of the operator in the way: a reader that is
not linear, an output of the graph, tokens without a sum before them, a bias that no s gives, a constant so large that
float32 would round behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.affine import constant_term, is_normalised
from export.compiler.analyses.bias_shifts import Shifts
from export.compiler.analyses.linear_layer_changes import matrix
from export.compiler.errors import Refused, Site
from export.compiler.graph.constants import UNROUNDED, Array, Constants, is_constant
from export.compiler.graph.def_use import made_by, made_of, readers, remove_unused
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.operators.table import RESHAPES
from export.compiler.passes.outcome import Outcome

ROUNDING = 1e4 * np.finfo(np.float64).eps  # of a solution, relative to the bias
TRIAL_SHIFT = 1e-3  # stands for any constant


def carry_biases(model: ir.Model, sizes: Mapping[str, int]) -> Outcome:
    sites: list[Site] = []
    refusals: list[Site] = []
    for attempt in (_shift_tokens_before, _shift_sums_behind):
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
            sites.append(Site(name, "Add", _message(len(shifts.constants) - 1)))
            remove_unused(model)
    return Outcome(tuple(sites), tuple(refusals))


def _message(sums: int) -> str:
    """`sums`: the number of other sums that add the constant now. A softmax needs none: it ignores its keys' bias."""
    if not sums:
        return "left out: no answer depends on it"
    return "carried to a sum that was there" if sums == 1 else f"carried to {sums} sums that were there"


def _is_bias(shapes: Shapes, node: ir.Node) -> bool:
    """Whether a node adds a row, in float32 or double, to a value of the sum's shape. A norm's shift is no bias."""
    if node.op_type != "Add" or node.domain or node.outputs[0].dtype not in UNROUNDED:
        return False
    try:
        term = constant_term(shapes, node)
    except Refused:  # a rank is unknown
        return False
    producer = term[0].producer() if term is not None else None
    if producer is not None and any(is_normalised(value) for value in producer.inputs if value is not None):
        return False  # a norm that is written in single operators
    return term is not None and term[1].shape[-1] == term[1].size > 1 and not node.outputs[0].is_graph_output()


def _shift_tokens_before(shapes: Shapes, node: ir.Node, later: Sequence[ir.Node]) -> Shifts | None:
    """The shifts that let the Add `node` go by a shift of its layer's tokens.

    None if the layer neither has more outputs than inputs nor makes absorbed queries. Raises Refused.
    """
    term = constant_term(shapes, node)
    product = made_by(term[0], "MatMul") if term is not None else None
    tokens, weight = product.inputs[0] if product is not None else None, matrix(product)
    if term is None or tokens is None or weight is None:
        return None
    if weight.shape[0] >= weight.shape[1] and not _makes_absorbed_queries(node, tokens):
        return None
    bias = term[1].reshape(-1)
    _shifted(shapes, tokens, np.full(weight.shape[0], TRIAL_SHIFT))  # refuses most graphs before the costly solution
    shift = _solution(weight, -bias)
    if shift is None:
        raise Refused.at(node, "no constant of the tokens gives this bias")
    shifts = _shifted(shapes, tokens, shift)
    shifts.constants[node] = np.zeros(bias.size)
    return shifts


def _shifted(shapes: Shapes, tokens: ir.Value, shift: Array) -> Shifts:
    """What follows if the tokens become X - `shift`, a vector of their features. Raises Refused."""
    shifts = Shifts(shapes)
    _subtract(shifts, tokens, shift.reshape((1,) * (shapes.rank(tokens) - 1) + (-1,)))
    shifts.follow(shapes.graph)
    return shifts


def _solution(weight: Array, wanted: Array) -> Array | None:
    """s (inputs) with s W = `wanted` (outputs), to double's rounding; None if there is no such s."""
    rounding, rows = ROUNDING * max(1.0, float(np.abs(wanted).max())), len(weight) + 1
    subset = np.asarray(np.linalg.qr(np.column_stack([weight.T, wanted])[:rows], mode="r"))
    if len(subset) == rows and abs(subset[-1, -1]) > 2 * np.sqrt(rows) * rounding:
        return None  # nothing solves even the first equations, one more than there are features
    orthogonal, triangle = np.linalg.qr(weight.T)
    if triangle.shape[0] == triangle.shape[1] and np.abs(np.diag(triangle)).min() > ROUNDING:
        shift = np.linalg.solve(triangle, orthogonal.T @ wanted)
    else:  # many solutions, which differ in directions that the weight maps to 0: the shortest
        shift = np.linalg.lstsq(weight.T, wanted, rcond=None)[0]
    return np.asarray(shift) if np.abs(shift @ weight - wanted).max() <= rounding else None


def _makes_absorbed_queries(node: ir.Node, tokens: ir.Value) -> bool:
    """Whether the sum is multiplied, after a Reshape, by the transposed tokens: absorbed keys are the tokens."""
    reshapes = readers(node.outputs[0])
    if len(reshapes) != 1 or reshapes[0].op_type not in RESHAPES:
        return False
    products = [use.node for use in reshapes[0].outputs[0].uses() if use.idx == 0 and use.node.op_type == "MatMul"]
    return [made_of(product.inputs[1], "Transpose") for product in products] == [tokens]


def _subtract(shifts: Shifts, value: ir.Value, array: Array) -> None:
    """Lets the sum that makes `value`, or one right before it, add `array` less. Raises Refused if there is none."""
    producer = value.producer()
    if producer is None:
        raise Refused.of(value, "is given, and no sum before it takes a constant off")
    if value.index() or not shifts.add_at(producer, -array):
        terms = [term for term in producer.inputs if term is not None and not is_constant(term)]
        if producer.op_type != "Add" or not any(shifts.add_before(term, producer, -array) for term in terms):
            raise Refused.of(value, "makes the tokens and adds no constant")
    shifts.shift(value, array)


def _shift_sums_behind(shapes: Shapes, node: ir.Node, later: Sequence[ir.Node]) -> Shifts | None:
    """The shifts that let the Add `node` go by later sums. Raises Refused."""
    shifts, term = Shifts(shapes), constant_term(shapes, node)
    if term is None:
        return None
    shifts.shift(node.outputs[0], term[1])
    shifts.follow(later)
    shifts.constants[node] = np.zeros(term[1].size)
    return shifts


def _apply(graph: ir.Graph, shifts: Shifts, dropped: ir.Node) -> None:
    """Writes the new constants into their nodes; the readers of the Add `dropped` read its other term."""
    constants = Constants(graph)
    for node, array in shifts.constants.items():
        out = node.outputs[0]
        term = next((value for value in node.inputs if value is not None and not is_constant(value)), None)
        if node is dropped and term is not None:
            ir.convenience.replace_all_uses_with(out, term)
            continue
        position = _constant_position(node)
        while array.ndim > 1 and array.shape[0] == 1 and node.op_type == "Add":
            array = array[0]
        node.replace_input_with(position, constants.add(np.asarray(array), f"{out.name}_carried", out.dtype))


def _constant_position(node: ir.Node) -> int:
    """Which input holds the constant of an Add, Expand, Gemm or LayerNormalization."""
    if node.op_type == "Add":
        return next(position for position, value in enumerate(node.inputs) if is_constant(value))
    if node.op_type == "Gemm" and len(node.inputs) < 3:
        node.resize_inputs(3)
    return 0 if node.op_type == "Expand" else 2
