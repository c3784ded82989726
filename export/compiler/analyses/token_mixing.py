"""The operators that join the tokens of a text, and under which conditions a hidden token adds nothing to them.

In: a node, and the roles of its inputs' axes. Out: a `Join`; or Refused if a hidden token may add something. An
operator without a rule here may join no tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from export.compiler.analyses.masked_entries import Roles
from export.compiler.analyses.masked_propagation import is_never_negative
from export.compiler.errors import Refused
from export.compiler.graph.attributes import attribute_int, axes_of, given, mixed_axes, optional
from export.compiler.graph.def_use import is_read
from export.compiler.graph.symbolic_shapes import Shapes, same, slices
from export.compiler.operators.demand_rules import einsum_terms
from export.compiler.operators.table import REDUCING, VIEWS, Trait, operator_of, view_of
from export.compiler.operators.view import long_axes

Axes = Mapping[int, int]  # position of an input -> its axis


@dataclass(frozen=True)
class PickedTokens:
    """The tokens of `value` that a node picks along `axis`: the same indices for all texts, or a value of the graph
    with an index for every text.
    """

    value: ir.Value
    rows: tuple[int, ...] | ir.Value
    axis: int = 1


@dataclass(frozen=True)
class Join:
    """How a node joins tokens.

    - `axes`: axis of the output -> the input axes that it comes from, where analyses/axis_maps.py cannot tell.
    - `done`: pairs (input, axis) that the node sums or picks from, so that the output has no such axis. Hidden tokens
      change nothing there.
    - `zero`: axes of the output along which the entries of hidden tokens are 0.
    - `picked`: the tokens that the node picks of its first input.
    """

    axes: Mapping[int, Axes] = field(default_factory=dict)
    done: set[tuple[int, int]] = field(default_factory=set)
    zero: frozenset[int] = frozenset()
    picked: PickedTokens | None = None


OF_ANOTHER = "for a text without tokens it may take another text's token; torch's newer exporter writes no such node"
NOTHING = Join()
Rule = Callable[[Shapes, ir.Node, Sequence[Roles | None]], Join]


def join_of(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    """How the node joins tokens; NOTHING for an operator without a rule.

    `roles`: of each input, None if the input has none. Raises Refused where hidden tokens may add something.
    """
    rule = RULES.get(node.op_type) if node.domain == "" else None
    return rule(shapes, node, roles) if rule is not None else NOTHING


def _product(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    pairs = []
    for position in range(2):
        rank, place = shapes.rank(given(node, position)), position + 1
        pairs.append((position, rank - place if rank > 1 else 0))
    return _summed(node, roles, pairs)


def _summed(node: ir.Node, roles: Sequence[Roles | None], places: Sequence[tuple[int, int]]) -> Join:
    """A sum of products over one axis of several inputs: `places` are pairs of an input and its axis.

    A hidden token adds nothing if one of the factors is 0 there.
    """
    factors = [
        (role, axis) for position, axis in places if (role := roles[position]) is not None and axis in role.tokens
    ]
    if not factors:
        return NOTHING
    if len(factors) < len(places) or not any(role.at(axis).zero for role, axis in factors):
        raise Refused.at(node, "it may sum over hidden tokens")
    return Join(done={*places})


def _einsum(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    terms, result = einsum_terms(shapes, node) or ([], "")
    done: set[tuple[int, int]] = set()
    for letter in {*"".join(terms)} - {*result}:
        places = [(position, term.index(letter)) for position, term in enumerate(terms) if letter in term]
        done |= _summed(node, roles, places).done
    return Join(done=done)


def _softmax(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    role, (axis, *more) = roles[0], mixed_axes(node, shapes.rank(node.outputs[0]))
    if role is None or axis not in role.axes() or more:
        return NOTHING
    if not role.at(axis).sunk:
        raise Refused.at(node, "hidden tokens may have weights" + _of_integers(node.inputs[0]))
    return Join(axes={axis: {0: axis}}, zero=frozenset({axis}))


def _of_integers(scores: ir.Value | None) -> str:
    """Advice where quantize_static has rounded the masked scores, which it does unless told which operators to take."""
    producer = scores.producer() if scores is not None else None
    rounded = producer is not None and producer.op_type == "DequantizeLinear"
    return ": its masked scores are integers; quantise with op_types_to_quantize=['MatMul']" if rounded else ""


def _reduce(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    value, role, axes = given(node, 0), roles[0], axes_of(node)
    if role is None or axes is None:
        return NOTHING
    joined = {axis % shapes.rank(value) for axis in axes} & {*role.tokens}
    traits = operator_of(node).traits
    zero = Trait.SUMS in traits or (node.op_type == "ReduceMax" and is_never_negative(value))
    sunk = Trait.GREATEST in traits
    if not all((zero and role.at(axis).zero) or (sunk and role.at(axis).sunk) for axis in joined):
        raise Refused.at(node, "it may read hidden tokens")
    return Join(done={(0, axis) for axis in joined})


def _view(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    """Operators that only move elements: they may pick tokens by index, and merge texts with heads or split them again,
    as long as the elements of a text stay adjacent.
    """
    view, role = view_of(shapes, node), roles[0]
    if view is None or role is None:
        return NOTHING
    if node.op_type == "Slice" and (kept := _drops_further_entries(shapes, node, role)):
        return Join(axes={axis: {0: axis} for axis in kept})
    if {*view.picks} & {*role.tokens}:
        ((axis, pick), *others) = view.picks.items()
        if others or pick.numbers is None:
            raise Refused.at(node, "it may read hidden tokens")
        return Join(done={(0, axis)}, picked=PickedTokens(given(node, 0), pick.numbers, axis))
    axes = {}
    for run in view.runs:
        before, after = long_axes(view.before, run.source), long_axes(view.after, run.made)
        inner = [*(view.before[axis] for axis in before[1:]), *(view.after[axis] for axis in after[1:])]
        if not before or not after or run.pick is not None or not all(isinstance(dim, int) for dim in inner):
            continue
        outer, new_outer = before[0], after[0]
        if outer == role.batch or same(view.before[outer], view.after[new_outer]):
            axes[new_outer] = {0: outer}
    return Join(axes=axes)


def _drops_further_entries(shapes: Shapes, node: ir.Node, role: Roles) -> list[int]:
    """The axis along which a Slice keeps exactly the tokens and drops further entries behind them; empty otherwise."""
    cuts = slices(node, shapes.rank(node.outputs[0])) or {}
    axes = [axis for axis, cut in cuts.items() if axis in role.tokens and cut[0] == 0 and cut[1] < 0 and cut[2] == 1]
    source, out = given(node, 0), node.outputs[0]
    cut_off = [shapes.dims(source)[axis] + cuts[axis][1] for axis in axes]
    return axes if len(cuts) == 1 and all(map(same, cut_off, [shapes.dims(out)[axis] for axis in axes])) else []


def _concat(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    """Tokens, followed by a fixed number of further entries such as an attention sink. Or one value alone, as older
    exporters write.
    """
    axis = attribute_int(node, "axis", 0) % shapes.rank(node.outputs[0])
    first, *others = roles
    starts_with_tokens = first is not None and axis in first.tokens
    fixed = [isinstance(shapes.dims(value)[axis], int) for value in node.inputs[1:] if value is not None]
    return Join(axes={axis: {0: axis}}) if not others or (starts_with_tokens and all(fixed)) else NOTHING


def _gather_nd(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    """One token of every text, in the form that the pass read-rows writes: indices (texts, 1, 1)."""
    value, indices, role = given(node, 0), given(node, 1), roles[0]
    if role is None or not role.tokens:
        return NOTHING
    if not attribute_int(node, "batch_dims", 0):
        raise Refused.at(node, OF_ANOTHER)
    if attribute_int(node, "batch_dims", 0) != 1 or shapes.dims(indices)[1:] != (1, 1):
        raise Refused.at(node, "it may read hidden tokens")
    features = {axis: {0: axis} for axis in range(2, shapes.rank(value))}
    return Join(axes={0: {0: 0}, **features}, done={(0, 1), (1, 0)}, picked=PickedTokens(value, indices))


def _attention(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    """ONNX's Attention: the output has the queries' tokens. Hidden keys need a mask, boolean or added to scores."""
    query, keys, values, mask = [*roles, None, None, None, None][:4]
    out = node.outputs[0]
    row, masking = shapes.rank(out) - 2, optional(node, 3)
    expected = (0, row)
    if any(map(is_read, node.outputs[1:])) or any(roles[4:]):
        raise Refused.at(node, "expected no past, no numbers of keys and no scores among its outputs")
    if all(role is not None and role.axes() == (0,) for role in (query, keys, values)) and not (mask and mask.tokens):
        return Join(axes={0: {0: 0}}, done={(1, 0), (2, 0), (3, 0)})  # a decoder's own rows: no tokens
    if query is None or keys is None or values is None or not keys.axes() == values.axes() == expected:
        raise Refused.at(node, "expected texts and tokens as its first and third axis, or first and second")
    if query.axes() != expected and (query.axes() != (0,) or attribute_int(node, "is_causal", 0)):
        raise Refused.at(node, "expected queries of all tokens or of rows")
    if masking is None or mask is None or shapes.rank(masking) != 4 or not _hides(masking, mask, keys):
        raise Refused.at(node, "hidden tokens may have weights")
    axes = {0: {0: 0}} | ({row: {0: row}} if row in query.axes() else {})
    done = {(k, axis) for k in (1, 2) for axis in expected} | {(3, axis) for axis in mask.axes()}
    return Join(axes=axes, done=done)


def _hides(masking: ir.Value, mask: Roles, keys: Roles) -> bool:
    """Whether hidden keys get the weight 0. An added mask is not enough if keys may be filled with large numbers: their
    products with a query may exceed it.
    """
    if masking.dtype == ir.DataType.BOOL:
        return mask.at(3).zero
    return mask.at(3).sunk > 0 and not any(facts.low or facts.high for facts in keys.facts.values())


def _dynamic_scale(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    if roles[0] is not None and roles[0].axes():
        raise Refused.at(node, "its scale is of all tokens, also hidden ones; with fixed scales, QDQ, a file is packed")
    return NOTHING


RULES: Mapping[str, Rule] = {
    "MatMul": _product,
    "Einsum": _einsum,
    "Softmax": _softmax,
    **dict.fromkeys(REDUCING, _reduce),
    **dict.fromkeys(VIEWS, _view),
    "Concat": _concat,
    "GatherND": _gather_nd,
    "Attention": _attention,
    "DynamicQuantizeLinear": _dynamic_scale,
}
