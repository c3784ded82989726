"""Builds the indices by which a packed graph finds its tokens.

In: the mask (texts, tokens), and the tokens that a network picks by index. Out: nodes before the loop with `Texts`, the
indices for all texts, and nodes in the loop with `Part`, the indices for a few texts of similar length:

    is_kept (texts, tokens)     the tokens that the mask shows; but every token of a text that shows none, or of which a
                                hidden token is picked, or, if `trailing`, that hides a token before a shown token
    token_order (texts, tokens) the kept tokens of each text in their order, then the other tokens
    sorted_texts (texts)        the texts by their numbers of kept tokens, the longest first

Refuses nothing by name. All values are INT64, except where a comment says BOOL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from export.compiler.graph.node_builder import BOOL, INT64, Nodes

AREA = 256  # tokens of a part: as many as a core's caches hold. Only a single text may have more.


@dataclass
class Texts:
    """Indices for all texts, INT64 values of the graph that are computed once, before the loop."""

    nodes: Nodes
    count: ir.Value  # (1): the number of texts
    length: ir.Value  # (1): the number of tokens of a text, with padding
    token_order: ir.Value  # (texts, tokens)
    sorted_texts: ir.Value  # (texts)
    kept_counts: ir.Value  # (texts), the numbers of kept tokens of the sorted texts
    picked_ranks: dict[ir.Value | tuple[int, ...], ir.Value]  # (texts, picks), ranks of picked tokens among the kept


@dataclass
class Part:
    """A few texts: n of them, s the number of kept tokens of the longest, t the number of kept tokens of all."""

    texts: ir.Value  # (n), their indices
    count: ir.Value  # (1): n
    length: ir.Value  # (1): s
    token_indices: ir.Value  # (n, s), each token's index in its text
    flat_indices: ir.Value  # (n, s), each token's index among the tokens of all texts
    packed_rows: ir.Value  # (n, s), each token's packed row; behind the kept tokens the last row of the text
    is_kept: ir.Value  # (n, s), BOOL, False behind the kept tokens of a text
    first_rows: ir.Value  # (n, 1), the first packed row of each text
    grid_indices: ir.Value  # (1, t), each packed row's index in the flattened (n, s)


def index_texts(nodes: Nodes, mask: ir.Value, picks: Sequence[tuple[int, ...] | ir.Value], trailing: bool) -> Texts:
    """Adds the nodes that sort the texts and find their kept tokens; returns these indices.

    `mask`: (texts, tokens). `picks`: indices of picked tokens that are the same for all texts, or a value with an index
    for each text. `trailing`: all tokens of a text are kept if the mask hides a token before a visible token.
    """
    sizes = nodes.add("Shape", [mask])
    count, length = (nodes.gather(sizes, nodes.integers([axis])) for axis in (0, 1))
    is_shown = nodes.cast(mask, BOOL)
    picked = {pick: _picked_indices(nodes, pick, count, length) for pick in picks}
    one = nodes.scalar(1)
    positions = nodes.range(nodes.scalar_of(length))
    keeps_all = _keeps_all(nodes, is_shown, [*picked.values()])
    if trailing:
        keeps_all = nodes.add("Or", [keeps_all, _hides_inside(nodes, is_shown, positions)])
    kept = nodes.cast(nodes.add("Or", [is_shown, keeps_all]), INT64)
    rank = nodes.add("Sub", [nodes.add("CumSum", [kept, one]), one])  # of a kept token among those of its text
    penalty = nodes.add("Mul", [nodes.add("Sub", [one, kept]), length])  # sorts hidden tokens behind the kept
    token_order = _sort(nodes, nodes.add("Add", [positions, penalty]), length, largest=0)[1]
    counts = nodes.sum(kept, 1, keepdims=0)
    sorted_counts, texts = _sort(nodes, counts, count, largest=1)
    ranks = {pick: nodes.add("GatherElements", [rank, index], axis=1) for pick, index in picked.items()}
    for value in (count, length):
        value.shape = ir.Shape([1])
    for value in (texts, sorted_counts):
        value.shape = ir.Shape([None])
    for value in (token_order, *ranks.values()):
        value.shape = ir.Shape([None, None])
    return Texts(nodes, count, length, token_order, texts, sorted_counts, ranks)


def _picked_indices(nodes: Nodes, pick: tuple[int, ...] | ir.Value, count: ir.Value, length: ir.Value) -> ir.Value:
    """(texts, picks), counted from the start. Where a text is too short, beyond its end: the graph then fails."""
    if isinstance(pick, tuple):
        wanted = nodes.add("Expand", [nodes.integers(pick), nodes.vector([count, len(pick)])])
    else:
        wanted = nodes.cast(nodes.reshape(pick, [-1, 1]), INT64)
    if isinstance(pick, tuple) and min(pick) >= 0:
        return wanted
    zero = nodes.scalar(0)
    from_end = nodes.add("Add", [wanted, length])
    indices = nodes.add("Where", [nodes.add("Less", [wanted, zero]), from_end, wanted])
    return nodes.add("Where", [nodes.add("Less", [indices, zero]), length, indices])


def _keeps_all(nodes: Nodes, is_shown: ir.Value, picked: Sequence[ir.Value]) -> ir.Value:
    """(texts, 1), BOOL: whether the mask shows no token of a text, or hides a token that is picked."""
    shown = nodes.cast(is_shown, INT64)
    keeps_all = nodes.add("Equal", [nodes.sum(shown, 1, keepdims=1), nodes.scalar(0)])
    for index in picked:
        hidden = nodes.add("Sub", [nodes.scalar(1), nodes.add("GatherElements", [shown, index], axis=1)])
        any_hidden = nodes.add("Greater", [nodes.sum(hidden, 1, keepdims=1), nodes.scalar(0)])
        keeps_all = nodes.add("Or", [keeps_all, any_hidden])
    return keeps_all


def _hides_inside(nodes: Nodes, is_shown: ir.Value, positions: ir.Value) -> ir.Value:
    """(texts, 1), BOOL: whether the mask hides a token before a token that it shows."""
    shown_count = nodes.sum(nodes.cast(is_shown, INT64), 1, keepdims=1)
    is_prefix = nodes.add("Less", [positions, shown_count])
    differs = nodes.cast(nodes.add("Xor", [is_shown, is_prefix]), INT64)
    return nodes.add("Greater", [nodes.sum(differs, 1, keepdims=1), nodes.scalar(0)])


def _sort(nodes: Nodes, value: ir.Value, count: ir.Value, largest: int) -> tuple[ir.Value, ir.Value]:
    """Sorts along the last axis, of `count` elements: the values and their indices. `largest`: 1 for descending."""
    node = ir.node("TopK", [value, count], {"axis": -1, "largest": largest, "sorted": 1}, num_outputs=2)
    values = nodes.put(node, "packed_sorted", value.dtype)
    node.outputs[1].name, node.outputs[1].dtype = nodes.constants.name("packed_places"), INT64
    return values, node.outputs[1]


def sorted_positions(texts: Texts) -> ir.Value:
    """(texts), where each text stands among the sorted texts."""
    return _sort(texts.nodes, texts.sorted_texts, texts.count, largest=0)[1]


def index_part(nodes: Nodes, texts: Texts, start: ir.Value) -> tuple[Part, ir.Value]:
    """The part whose texts begin at `start` (1) of the sorted texts, and where the next part begins (1)."""
    zero, one = nodes.scalar(0), nodes.scalar(1)
    length = nodes.gather(texts.kept_counts, start)
    max_texts = nodes.larger(nodes.add("Div", [nodes.integers([AREA]), length]), nodes.integers([1]))
    end = nodes.add("Add", [start, max_texts])
    chosen, kept_counts = nodes.cut(texts.sorted_texts, start, end), nodes.cut(texts.kept_counts, start, end)
    count, column = nodes.add("Shape", [chosen]), nodes.unsqueeze(kept_counts, [1])
    first_rows = nodes.unsqueeze(nodes.add("CumSum", [kept_counts, zero], exclusive=1), [1])
    positions = nodes.unsqueeze(nodes.range(nodes.scalar_of(length)), [0])
    clipped = nodes.smaller(positions, nodes.add("Sub", [column, one]))
    is_kept = nodes.add("Less", [positions, column])
    token_indices = nodes.cut(nodes.gather(texts.token_order, chosen), nodes.integers([0]), length, 1)
    text_starts = nodes.unsqueeze(nodes.add("Mul", [chosen, texts.length]), [1])
    flat_indices = nodes.add("Add", [text_starts, token_indices])
    grid_indices = nodes.add("NonZero", [nodes.reshape(is_kept, [-1])])
    packed_rows = nodes.add("Add", [first_rows, clipped])
    part = Part(chosen, count, length, token_indices, flat_indices, packed_rows, is_kept, first_rows, grid_indices)
    return part, end
