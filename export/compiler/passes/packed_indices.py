"""The numbers by which a packed graph finds its tokens.

In: the mask and the tokens that a network picks by number. Out: nodes before the loop, `Texts`, and nodes of its body,
`Part`, for a few texts of like length.

    keep (texts, tokens)  what the mask shows; every token of a text without one, or of which a hidden one is picked. If
                          `trailing`, every token of a text with a hidden token before one that the mask shows
    order                 each text's kept tokens in their order, then the others
    sorted                texts by the number of kept tokens, the longest first
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from export.compiler.graph.node_builder import BOOL, INT64, Nodes

AREA = 256  # tokens of a part, and more only for a single text: what a core's caches hold


@dataclass
class Texts:
    nodes: Nodes
    count: ir.Value  # (1)
    length: ir.Value  # (1)
    order: ir.Value  # (texts, tokens)
    sorted: ir.Value  # (texts)
    kept: ir.Value  # (texts), the numbers of kept tokens of the sorted texts
    picked: dict[ir.Value | tuple[int, ...], ir.Value]  # (texts, picks), ranks of the tokens that are picked


@dataclass
class Part:
    """Some texts: n of them, s the number of tokens of the longest, t the tokens of all."""

    texts: ir.Value  # (n)
    count: ir.Value  # (1): n
    length: ir.Value  # (1): s
    places: ir.Value  # (n, s), each token's place in its text
    flat: ir.Value  # (n, s), the same among the tokens of all texts
    grid: ir.Value  # (n, s), its row among the packed rows; hidden tokens have the last row of their text
    seen: ir.Value  # (n, s), whether the mask shows the token
    starts: ir.Value  # (n, 1), the first row of each text
    rows: ir.Value  # (1, t), of each packed row the place in the grid


def number_texts(nodes: Nodes, mask: ir.Value, picks: Sequence[tuple[int, ...] | ir.Value], trailing: bool) -> Texts:
    """`trailing`: see `keep`."""
    sizes = nodes.add("Shape", [mask])
    count, length = (nodes.gather(sizes, nodes.integers([axis])) for axis in (0, 1))
    seen = nodes.cast(mask, BOOL)
    places = {pick: _places(nodes, pick, count, length) for pick in picks}
    one = nodes.scalar(1)
    numbers = nodes.add("Range", [nodes.scalar(0), nodes.scalar_of(length), one])
    whole = _whole(nodes, seen, [*places.values()])
    if trailing:
        whole = nodes.add("Or", [whole, _hides_others(nodes, seen, numbers)], BOOL)
    kept = nodes.cast(nodes.add("Or", [seen, whole], BOOL), INT64)
    rank = nodes.add("Sub", [nodes.add("CumSum", [kept, one]), one])  # of a kept token among those of its text
    behind = nodes.add("Mul", [nodes.add("Sub", [one, kept]), length])
    order = _top(nodes, nodes.add("Add", [numbers, behind]), length, largest=0)[1]
    counts = nodes.sum(kept, 1, keepdims=0)
    longest, texts = _top(nodes, counts, count, largest=1)
    ranks = {pick: nodes.add("GatherElements", [rank, place], INT64, {"axis": 1}) for pick, place in places.items()}
    for value in (count, length):
        value.shape = ir.Shape([1])
    for value in (texts, longest):
        value.shape = ir.Shape([None])
    for value in (order, *ranks.values()):
        value.shape = ir.Shape([None, None])
    return Texts(nodes, count, length, order, texts, longest, ranks)


def _places(nodes: Nodes, pick: tuple[int, ...] | ir.Value, count: ir.Value, length: ir.Value) -> ir.Value:
    """(texts, picks), at least 0; beyond the end, which is an error, where a text is too short for one from its end."""
    if isinstance(pick, tuple):
        wanted = nodes.add("Expand", [nodes.integers(pick), nodes.vector([count, len(pick)])])
    else:
        wanted = nodes.cast(nodes.reshape(pick, [-1, 1]), INT64)
    if isinstance(pick, tuple) and min(pick) >= 0:
        return wanted
    zero = nodes.scalar(0)
    counted = nodes.add("Add", [wanted, length])
    places = nodes.add("Where", [nodes.add("Less", [wanted, zero], BOOL), counted, wanted])
    return nodes.add("Where", [nodes.add("Less", [places, zero], BOOL), length, places])


def _whole(nodes: Nodes, seen: ir.Value, places: Sequence[ir.Value]) -> ir.Value:
    """(texts, 1), whether nothing of a text is seen, or a token that is picked is hidden."""
    number = nodes.cast(seen, INT64)
    whole = nodes.add("Equal", [nodes.sum(number, 1, keepdims=1), nodes.scalar(0)], BOOL)
    for place in places:
        hidden = nodes.add("Sub", [nodes.scalar(1), nodes.add("GatherElements", [number, place], INT64, {"axis": 1})])
        some = nodes.add("Greater", [nodes.sum(hidden, 1, keepdims=1), nodes.scalar(0)], BOOL)
        whole = nodes.add("Or", [whole, some], BOOL)
    return whole


def _hides_others(nodes: Nodes, seen: ir.Value, numbers: ir.Value) -> ir.Value:
    """(texts, 1), whether a token that the mask hides stands before one that it shows."""
    shown = nodes.sum(nodes.cast(seen, INT64), 1, keepdims=1)
    first = nodes.add("Less", [numbers, shown], BOOL)
    differ = nodes.cast(nodes.add("Xor", [seen, first], BOOL), INT64)
    return nodes.add("Greater", [nodes.sum(differ, 1, keepdims=1), nodes.scalar(0)], BOOL)


def _top(nodes: Nodes, value: ir.Value, count: ir.Value, largest: int) -> tuple[ir.Value, ir.Value]:
    """All of the last axis, sorted: values and places."""
    node = ir.node("TopK", [value, count], {"axis": -1, "largest": largest, "sorted": 1}, num_outputs=2)
    values = nodes.put(node, "packed_sorted", value.dtype)
    node.outputs[1].name, node.outputs[1].dtype = nodes.constants.name("packed_places"), INT64
    return values, node.outputs[1]


def unsorted(texts: Texts) -> ir.Value:
    """(texts), the place of each text among the sorted."""
    return _top(texts.nodes, texts.sorted, texts.count, largest=0)[1]


def number_part(nodes: Nodes, texts: Texts, start: ir.Value) -> tuple[Part, ir.Value]:
    """The texts from `start` (1) on, and where the next part starts."""
    zero, one = nodes.scalar(0), nodes.scalar(1)
    length = nodes.gather(texts.kept, start)
    most = nodes.larger(nodes.add("Div", [nodes.integers([AREA]), length]), nodes.integers([1]))
    end = nodes.add("Add", [start, most])
    chosen, kept = nodes.cut(texts.sorted, start, end), nodes.cut(texts.kept, start, end)
    count, kept_rows = nodes.add("Shape", [chosen]), nodes.unsqueeze(kept, [1])
    starts = nodes.unsqueeze(nodes.add("CumSum", [kept, zero], INT64, {"exclusive": 1}), [1])
    slots = nodes.unsqueeze(nodes.add("Range", [zero, nodes.scalar_of(length), one]), [0])
    last = nodes.smaller(slots, nodes.add("Sub", [kept_rows, one]))
    seen = nodes.add("Less", [slots, kept_rows], BOOL)
    places = nodes.cut(nodes.gather(texts.order, chosen), nodes.integers([0]), length, 1)
    flat = nodes.add("Add", [nodes.unsqueeze(nodes.add("Mul", [chosen, texts.length]), [1]), places])
    rows = nodes.add("NonZero", [nodes.reshape(seen, [-1])])
    part = Part(chosen, count, length, places, flat, nodes.add("Add", [starts, last]), seen, starts, rows)
    return part, end
