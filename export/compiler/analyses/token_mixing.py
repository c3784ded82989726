"""Operators that join tokens, and when a hidden token adds nothing.

In: a node and the roles of its inputs. Out: `Join`. An operator without a rule here joins nothing that may be hidden.
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
from export.compiler.graph.shapes import Shapes, same, slices
from export.compiler.operators.demand_rules import einsum_terms
from export.compiler.operators.table import REDUCING, VIEWS, Trait, operator_of, view_of
from export.compiler.operators.view import long_axes

Axes = Mapping[int, int]  # of inputs, by position


@dataclass(frozen=True)
class Join:
    """`axes`: where the elements along an axis of the output come from, if no rule tells. `done`: axes of inputs that
    the output no longer has, which is exact. `zero`: axes of the output that are 0 where hidden. `rows`: tokens picked.
    """

    axes: Mapping[int, Axes] = field(default_factory=dict)
    done: set[tuple[int, int]] = field(default_factory=set)
    zero: frozenset[int] = frozenset()
    rows: tuple[int, ...] | ir.Value | None = None
    axis: int = 1  # of the tokens that are picked


OF_ANOTHER = "for a text without tokens it may take another text's token; torch's newer exporter writes no such node"
NOTHING = Join()
Rule = Callable[[Shapes, ir.Node, Sequence[Roles | None]], Join]


def join_of(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    """`roles` of the inputs. Raises Refused where hidden tokens may add something."""
    rule = RULES.get(node.op_type) if node.domain == "" else None
    return rule(shapes, node, roles) if rule is not None else NOTHING


def _product(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    pairs = []
    for position in range(2):
        rank, place = shapes.rank(given(node, position)), position + 1
        pairs.append((position, rank - place if rank > 1 else 0))
    return _summed(node, roles, pairs)


def _summed(node: ir.Node, roles: Sequence[Roles | None], places: Sequence[tuple[int, int]]) -> Join:
    """Products summed over one axis, which each of `places`, an input and its axis, has."""
    held = [(role, axis) for position, axis in places if (role := roles[position]) is not None and axis in role.tokens]
    if not held:
        return NOTHING
    if len(held) < len(places) or not any(role.at(axis).zero for role, axis in held):
        raise Refused.at(node, "it may sum over hidden tokens")
    return Join(done={*places})


def _einsum(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    terms, made = einsum_terms(shapes, node) or ([], "")
    done: set[tuple[int, int]] = set()
    for letter in {*"".join(terms)} - {*made}:
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
    """quantize_static rounds the masked scores, too, if its caller names no operators."""
    maker = scores.producer() if scores is not None else None
    rounded = maker is not None and maker.op_type == "DequantizeLinear"
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


def _moved(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    """Tokens by number; texts and heads as a single axis, and apart again: the elements of a text stay together."""
    view, role = view_of(shapes, node), roles[0]
    if view is None or role is None:
        return NOTHING
    if node.op_type == "Slice" and (kept := _without_behind(shapes, node, role)):
        return Join(axes={axis: {0: axis} for axis in kept})
    if {*view.picks} & {*role.tokens}:
        ((axis, pick), *others) = view.picks.items()
        if others or pick.numbers is None:
            raise Refused.at(node, "it may read hidden tokens")
        return Join(done={(0, axis)}, rows=pick.numbers, axis=axis)
    axes = {}
    for run in view.runs:
        left, right = long_axes(view.before, run.source), long_axes(view.after, run.made)
        inner = [*(view.before[axis] for axis in left[1:]), *(view.after[axis] for axis in right[1:])]
        if not left or not right or run.pick is not None or not all(isinstance(dim, int) for dim in inner):
            continue
        source, made = left[0], right[0]
        if source == role.batch or same(view.before[source], view.after[made]):
            axes[made] = {0: source}
    return Join(axes=axes)


def _without_behind(shapes: Shapes, node: ir.Node, role: Roles) -> list[int]:
    """The axis along which a Slice keeps the tokens and drops what stands behind them."""
    cuts = slices(node, shapes.rank(node.outputs[0])) or {}
    axes = [axis for axis, cut in cuts.items() if axis in role.tokens and cut[0] == 0 and cut[1] < 0 and cut[2] == 1]
    source, out = given(node, 0), node.outputs[0]
    cut_off = [shapes.dims(source)[axis] + cuts[axis][1] for axis in axes]
    return axes if len(cuts) == 1 and all(map(same, cut_off, [shapes.dims(out)[axis] for axis in axes])) else []


def _concat(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    """Older exporters join a single value; behind the tokens other entries may stand, such as a sink of scores."""
    axis = attribute_int(node, "axis", 0) % shapes.rank(node.outputs[0])
    first, *others = roles
    tokens = first is not None and axis in first.tokens
    behind = [isinstance(shapes.dims(value)[axis], int) for value in node.inputs[1:] if value is not None]
    return Join(axes={axis: {0: axis}}) if not others or (tokens and all(behind)) else NOTHING


def _gather_nd(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    """A token of each text, as read-rows writes it: the numbers are (texts, 1, 1)."""
    value, places, role = given(node, 0), given(node, 1), roles[0]
    if role is None or not role.tokens:
        return NOTHING
    if not attribute_int(node, "batch_dims", 0):
        raise Refused.at(node, OF_ANOTHER)
    if attribute_int(node, "batch_dims", 0) != 1 or shapes.dims(places)[1:] != (1, 1):
        raise Refused.at(node, "it may read hidden tokens")
    behind = {axis: {0: axis} for axis in range(2, shapes.rank(value))}
    return Join(axes={0: {0: 0}, **behind}, done={(0, 1), (1, 0)}, rows=places)


def _attention(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    """Queries are the output's rows; hidden keys need a mask, of booleans or to be added."""
    query, keys, values, mask = [*roles, None, None, None, None][:4]
    out = node.outputs[0]
    row, masking = shapes.rank(out) - 2, optional(node, 3)
    expected = (0, row)
    if any(map(is_read, node.outputs[1:])) or any(roles[4:]):
        raise Refused.at(node, "expected no past, no numbers of keys and no scores among its outputs")
    if all(role is not None and role.axes() == (0,) for role in (query, keys, values)) and not (mask and mask.tokens):
        return Join(axes={0: {0: 0}}, done={(1, 0), (2, 0), (3, 0)})  # of a decoder's rows, each of its text
    if query is None or keys is None or values is None or not keys.axes() == values.axes() == expected:
        raise Refused.at(node, "expected texts and tokens as its first and third axis, or first and second")
    if query.axes() != expected and (query.axes() != (0,) or attribute_int(node, "is_causal", 0)):
        raise Refused.at(node, "expected queries of all tokens or of rows")
    if masking is None or mask is None or shapes.rank(masking) != 4 or not _hides(masking, mask, keys):
        raise Refused.at(node, "hidden tokens may have weights")
    moved = {0: {0: 0}} | ({row: {0: row}} if row in query.axes() else {})
    done = {(k, axis) for k in (1, 2) for axis in expected} | {(3, axis) for axis in mask.axes()}
    return Join(axes=moved, done=done)


def _hides(masking: ir.Value, mask: Roles, keys: Roles) -> bool:
    """Whether the keys that the mask hides have no weight: products of filled keys may lift a sum."""
    if masking.dtype == ir.DataType.BOOL:
        return mask.at(3).zero
    return mask.at(3).sunk > 0 and not any(facts.low or facts.high for facts in keys.facts.values())


def _one_scale(shapes: Shapes, node: ir.Node, roles: Sequence[Roles | None]) -> Join:
    if roles[0] is not None and roles[0].axes():
        raise Refused.at(node, "its scale is of all tokens, also hidden ones; with fixed scales, QDQ, a file is packed")
    return NOTHING


RULES: Mapping[str, Rule] = {
    "MatMul": _product,
    "Einsum": _einsum,
    "Softmax": _softmax,
    **dict.fromkeys(REDUCING, _reduce),
    **dict.fromkeys(VIEWS, _moved),
    "Concat": _concat,
    "GatherND": _gather_nd,
    "Attention": _attention,
    "DynamicQuantizeLinear": _one_scale,
}
