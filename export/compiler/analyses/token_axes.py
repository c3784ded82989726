"""Finds which axes of every value are the batch of texts and their tokens, and proves that hidden tokens are not read.

In: a prepared graph, and its input `mask` (texts, tokens). Out: `Tokens`; or Refused, with the operator in the way.

The proof is by induction over the nodes. If every value is computed only for the tokens that the mask shows, it equals
the original at these tokens: an operator either reads, for a token, the same token of its inputs; or it joins the
tokens of a text in a sum, a maximum or a softmax, to which a hidden token adds nothing because its entry is 0 or far
below all others ("sunk").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from export.compiler.analyses.axis_maps import input_axes
from export.compiler.analyses.masked_entries import MaskedEntries, Roles, producers
from export.compiler.analyses.masked_propagation import facts_of
from export.compiler.analyses.runtime_gathered_rows import Choice, choices
from export.compiler.analyses.token_mixing import OF_ANOTHER, Axes, Join, PickedTokens, join_of
from export.compiler.errors import Refused
from export.compiler.graph.attributes import attribute_int, reads_shape_alone
from export.compiler.graph.constants import FLOATS, Array, is_constant
from export.compiler.graph.def_use import is_read
from export.compiler.graph.symbolic_shapes import WHOLE_NUMBERS, Shapes, same
from export.compiler.operators.table import REPEATING, RESIZING


@dataclass
class Tokens:
    """What the analysis found.

    - `inside`: the nodes that compute on tokens, in the graph's order.
    - `rows`: of these, the nodes that pick tokens, and what they pick.
    - `joining`: of these, the nodes that join the tokens of a text.
    - `roles`: which axes of the values that they compute are texts and tokens.
    """

    shapes: Shapes
    entries: MaskedEntries
    roles: dict[ir.Value, Roles] = field(default_factory=dict)
    inside: dict[ir.Node, None] = field(default_factory=dict)
    rows: dict[ir.Node, PickedTokens] = field(default_factory=dict)
    joining: set[ir.Node] = field(default_factory=set)

    def leads(self, value: ir.Value) -> bool:
        """Whether the first axis of a value is the texts and the second the tokens, without further entries."""
        dims = self.shapes.dims(value)
        first = self.role(value).axes() == (0, 1) and same(dims[0], self.entries.batch)
        return first and not self.entries.behind(dims[1])

    def role(self, value: ir.Value) -> Roles:
        return self.roles[value] if value in self.roles else self.entries.roles(value)


def analyse_tokens(shapes: Shapes, mask: ir.Value, drawn: Sequence[Mapping[str, Array]]) -> Tokens:
    """`drawn`: inputs with masks of every kind. Raises Refused where an output may depend on a hidden token.

    ONNX Runtime's fused BERT reads a mask as the number of its ones, and hides the tokens behind that number. If the
    analysis fails for all masks it is tried for masks of such padding; texts with another mask are computed whole.
    """
    try:
        return _analysed(shapes, mask, drawn, trailing=False)
    except Refused as refused:
        try:
            return _analysed(shapes, mask, drawn, trailing=True)
        except Refused:
            raise refused from None


def _analysed(shapes: Shapes, mask: ir.Value, drawn: Sequence[Mapping[str, Array]], trailing: bool) -> Tokens:
    chosen = {choice.node: choice for choice in choices(shapes)}
    moved = [
        (node.inputs[0], node.inputs[1])
        for node in shapes.graph
        if node.op_type == "GatherND" and attribute_int(node, "batch_dims", 0) == 1
    ]
    picks = [*((choice.whole, choice.chosen) for choice in chosen.values()), *moved]
    tokens = Tokens(shapes, MaskedEntries(shapes, mask, picks, drawn, trailing))
    flat = {node.inputs[0].producer() for node in chosen if node.op_type == "Gather" and node.inputs[0] is not None}
    for node in shapes.graph:
        if node in chosen and chosen[node].whole in tokens.roles and chosen[node].flat is not None:
            raise Refused.at(node, OF_ANOTHER)
        starts = chosen[node].whole in tokens.roles if node in chosen else _starts(tokens, node)
        if not reads_shape_alone(node) and node not in flat and starts:
            tokens.inside[node] = None
            _follow(tokens, node, chosen.get(node))
    for output in shapes.graph.outputs:
        _check_output(tokens, output)
    return tokens


def _starts(tokens: Tokens, node: ir.Node) -> bool:
    """Whether a node computes on tokens.

    It does if an input is computed on tokens, or if it is an embedding: the first node that makes features of weights
    for every token of every text. It also does if an axis of its output is texts times heads: later nodes could not
    tell whether the elements of a text are adjacent there.
    """
    if any(value in tokens.roles for value in node.inputs if value is not None):
        return True
    out = node.outputs[0]
    if out.shape is None:
        return False
    dims, entries = tokens.shapes.dims(out), tokens.entries
    if len(dims) > 1 and any(entries.texts_in(dim) not in (None, 1) for dim in dims):
        return True
    if out.dtype not in FLOATS or node.op_type in REPEATING:
        return False
    features = any(isinstance(dim, int) and dim > 1 for dim in dims)
    has_both = features and all(any(same(dim, size) for dim in dims) for size in (entries.batch, entries.length))
    return has_both and any(map(_is_weight, (value for node in producers(out) for value in node.inputs)))


def _is_weight(value: ir.Value | None) -> bool:
    """Whether a value is a constant tensor of floats or bytes. A repeated mask is made of none."""
    tensor = value.const_value if value is not None else None
    return tensor is not None and tensor.size > 1 and tensor.dtype not in {*WHOLE_NUMBERS, ir.DataType.BOOL}


def _follow(tokens: Tokens, node: ir.Node, choice: Choice | None) -> None:
    """Adds the roles of a node's outputs to `tokens`. `choice`: if the node picks rows at run time. Raises Refused."""
    given = [None if value is None or is_shape_input(node, k) else value for k, value in enumerate(node.inputs)]
    if choice is not None:
        join, given = Join({0: {0: 0}}, {(0, 1)}, picked=PickedTokens(choice.whole, choice.chosen)), [choice.whole]
        if not tokens.leads(choice.whole) or choice.chosen not in tokens.entries.picks:
            raise Refused.at(node, "expected texts and tokens as the first axes of what it picks")
    else:
        join = join_of(tokens.shapes, node, [None if value is None else tokens.role(value) for value in given])
        if join.picked is not None:
            _check_pick(tokens, node, join.picked)
    if join.picked is not None:
        tokens.rows[node] = join.picked
    if join.zero or join.done:
        tokens.joining.add(node)
    for output in node.outputs:
        if is_read(output):
            tokens.roles[output] = _roles(tokens, node, output, given, join)


def _check_pick(tokens: Tokens, node: ir.Node, picked: PickedTokens) -> None:
    """Raises Refused if the node may pick tokens of another text, or further entries. Notes constant indices."""
    dims = tokens.shapes.dims(picked.value)
    heads = tokens.entries.texts_in(dims[tokens.role(picked.value).batch or 0])
    if heads is None or (heads > 1 and not isinstance(picked.rows, tuple)):
        raise Refused.at(node, "expected an axis of texts alone of what it picks")
    is_known = isinstance(picked.rows, tuple) or picked.rows in tokens.entries.picks
    if tokens.entries.behind(dims[picked.axis]) or not is_known:
        raise Refused.at(node, "it may pick what is no token")
    if isinstance(picked.rows, tuple):
        tokens.entries.places.append(picked.rows)


def _roles(tokens: Tokens, node: ir.Node, output: ir.Value, given: list[ir.Value | None], join: Join) -> Roles:
    """Follows every free axis of `output` back to axes of the inputs. Raises Refused for an axis of unknown origin."""
    moves: dict[int, Mapping[int, int]] = {}
    for axis, dim in enumerate(tokens.shapes.dims(output)):
        if isinstance(dim, int):
            continue
        longer = tokens.entries.behind(dim) > 0
        if not longer:
            tokens.entries.check(output, dim)
        sources = join.axes[axis] if axis in join.axes else input_axes(tokens.shapes, node, output, axis)
        if sources is None and tokens.entries.is_of_text(dim) and not longer:
            continue
        if sources is None and _repeats(tokens, node, axis):
            sources = {}
        if sources is None:
            raise Refused.at(node, f"axis {axis} of its output mixes tokens or texts")
        moves[axis] = sources
    return _joined(tokens, node, output, given, join, moves)


def _joined(
    tokens: Tokens,
    node: ir.Node,
    output: ir.Value,
    given: list[ir.Value | None],
    join: Join,
    moves: Mapping[int, Axes],
) -> Roles:
    """The roles of the output's axes, of which `moves` tells the input axes that they come from.

    Raises Refused unless every axis of texts or tokens of an input is an axis of the output, or joined exactly. An axis
    along which an Expand repeats has a role, too, if it has the size of the texts or of the tokens.
    """
    roles = {k: tokens.role(value) for k, value in enumerate(given) if value is not None and not is_constant(value)}
    accounted = {(k, source) for sources in moves.values() for k, source in sources.items()} | join.done
    for k, role in roles.items():
        if lost := [axis for axis in role.axes() if (k, axis) not in accounted]:
            kind = "texts" if lost[0] == role.batch else "tokens"
            raise Refused.at(node, f"it may join hidden {kind}")
    batch, others = [], []
    for axis, sources in moves.items():
        kinds = {
            "batch" if source == roles[k].batch else "token" if source in roles[k].tokens else "other"
            for k, source in sources.items()
            if k in roles
        }
        if len(kinds) > 1:
            raise Refused.at(node, "an axis of texts meets one of tokens")
        dim = tokens.shapes.dims(output)[axis]
        batch += [axis] if kinds == {"batch"} or (not sources and tokens.entries.texts_in(dim) is not None) else []
        others += [axis] if kinds == {"token"} or (not sources and _is_long(tokens, output, axis)) else []
    if len(batch) != 1:
        raise Refused.at(node, "it joins texts")
    facts = {axis: facts_of(node, roles, moves[axis]) for axis in others}
    facts |= {axis: facts[axis]._replace(zero=True, low=False, high=False) for axis in facts.keys() & join.zero}
    return Roles(batch[0], facts)


def _repeats(tokens: Tokens, node: ir.Node, axis: int) -> bool:
    """Whether an Expand or Tile repeats along `axis`: a single element, or all elements for every text."""
    source, dims = node.inputs[0], tokens.shapes.dims(node.outputs[0])
    if node.op_type not in REPEATING or node.domain or source is None:
        return False
    before = [1] * (len(dims) - tokens.shapes.rank(source)) + [*tokens.shapes.dims(source)]
    return before[axis] == 1 or (node.op_type == "Tile" and before[axis] == tokens.entries.texts_in(dims[axis]))


def _is_long(tokens: Tokens, value: ir.Value, axis: int) -> bool:
    """Whether an axis has the size of the tokens."""
    return same(tokens.shapes.dims(value)[axis], tokens.entries.length)


def is_shape_input(node: ir.Node, position: int) -> bool:
    """Whether an input is the new shape of a Reshape or Expand, not data."""
    return position == 1 and not node.domain and node.op_type in RESIZING


def _check_output(tokens: Tokens, output: ir.Value) -> None:
    """Raises Refused if an output of the graph shows hidden tokens, or has axes that cannot be put together again."""
    producer = output.producer()
    if output not in tokens.roles or producer is None:
        return
    roles = tokens.roles[output]
    if roles.batch != 0 or not same(tokens.shapes.dims(output)[0], tokens.entries.batch):
        raise Refused.at(producer, f"expected texts as the first axis of the output {output.name!r}")
    if roles.tokens and (not tokens.leads(output) or not roles.at(1).zero):
        name = output.name
        parts = f"--read '{name}[:,0]' reads a part of it, --read '{name}[mask]' all but hidden tokens"
        raise Refused.at(producer, f"the output {name!r} shows hidden tokens: {parts}")
    if not all(isinstance(dim, int) for axis, dim in enumerate(tokens.shapes.dims(output)) if axis not in roles.axes()):
        name = output.name
        raise Refused.at(producer, f"expected known features of the output {name!r}: --read '{name}[:,-1]' reads a row")
