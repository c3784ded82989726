"""Explains where the pruning of unread rows stops: which operator needs all of a value, and why.

In: the demands of a graph. Out: `Site`s for the user; the last explains most.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from export.compiler.analyses.demand import WHOLE_VALUE, Demands, merged
from export.compiler.analyses.runtime_gathered_rows import OLDEST_OPSET, choices, is_smaller
from export.compiler.errors import Site
from export.compiler.graph.attributes import attribute_int, opset, optional
from export.compiler.graph.constants import FLOATS, is_constant
from export.compiler.graph.def_use import is_read
from export.compiler.graph.symbolic_shapes import WHOLE_NUMBERS, Shapes
from export.compiler.operators.boxes import WHOLE, Box
from export.compiler.operators.costs import is_multiplying
from export.compiler.operators.data_movement import indices_of
from export.compiler.operators.table import Trait, demand_of, operator_of

FOLLOWED = (
    "followed are GatherND of pairs (text, row), Gather of flattened rows at row + length * text, "
    "and GatherElements of whole rows"
)

SHORT = "picks rows that a short input lacks: of a free axis only rows of every input are followed, or a single row"


def stops(shapes: Shapes, demands: Demands, asked: Demands) -> list[Site]:
    """`demands`, `asked`: of `analyse`."""
    unknown = [
        Site(value.name or "", node.op_type, "its shape does not follow from the graph")
        for node in shapes.graph
        for value in node.outputs
        if value.shape is None and is_read(value)
    ]
    return [*_read_whole(shapes, demands), *_widened(shapes, demands, asked), *_picked(shapes, demands), *unknown[:1]]


def _read_whole(shapes: Shapes, demands: Demands) -> list[Site]:
    """Products that are computed in part but read all of a computed value, as an attention reads all keys."""
    sites = []
    for node in shapes.graph:
        boxes = demands.get(node.outputs[0], WHOLE_VALUE)
        if boxes == WHOLE_VALUE or not is_multiplying(node):
            continue
        read = demand_of(shapes, node, 0, boxes[0]).inputs
        for position, value in enumerate(node.inputs):
            if value is not None and read.get(position) == WHOLE and not is_constant(value) and value.producer():
                name, parts = node.outputs[0].name or "", " and ".join(map(in_words, boxes))
                sites.append(Site(name, node.op_type, f"for {parts} it reads all of {value.name}"))
    return sites[:1]


def _widened(shapes: Shapes, demands: Demands, asked: Demands) -> Iterator[Site]:
    """Operators that are computed in full though their readers need a part. Integers, as indices, do not count."""
    for output in (output for node in shapes.graph for output in node.outputs if output in asked):
        node = output.producer()
        if node is None or demands[output] != WHOLE_VALUE or output.dtype in WHOLE_NUMBERS:
            continue
        if (boxes := merged(shapes, output, asked[output])) != WHOLE_VALUE:
            parts = " and ".join(map(in_words, boxes))
            rule = "is not computed alone" + ("" if operator_of(node).reads else ": it has no rule")
            yield Site(output.name or "", node.op_type, f"the part that is read, {parts}, {rule}")


def _picked(shapes: Shapes, demands: Demands) -> list[Site]:
    """Nodes that alone need all rows because they pick rows that a short input lacks, or pick at run time: as many as
    there are, or in a form that runtime_gathered_rows.py does not recognise.
    """
    sites = []
    recognised = {choice.node: choice for choice in choices(shapes)}
    for node in shapes.graph:
        source, indices = optional(node, 0), optional(node, 1)
        maker = source.producer() if source is not None else None
        if Trait.PICKS not in operator_of(node).traits or maker is None or source is None or indices is None:
            continue
        if source.dtype not in FLOATS or demands.get(source) != WHOLE_VALUE or _read_by_others(shapes, source, demands):
            continue
        if is_constant(indices):
            if _may_lack_rows(shapes, node, source, indices):
                sites.append(Site.at(node, SHORT))
        else:
            reason = f"picks at run time of what {maker.op_type} {source.name} makes; {FOLLOWED}"
            if opset(node) < OLDEST_OPSET:
                reason = f"picks at run time, which is followed from opset {OLDEST_OPSET} on, found {opset(node)}"
            elif (choice := recognised.get(node)) is not None and not is_smaller(shapes, choice):
                rows = shapes.dims(choice.whole)[1]
                reason = f"picks {choice.count} of {rows} rows, at the sizes assumed not fewer: --dims {choice.count}=8"
            sites.append(Site.at(node, reason))
    return sites


def _may_lack_rows(shapes: Shapes, node: ir.Node, source: ir.Value, indices: ir.Value) -> bool:
    """Whether the node gathers constant rows of a free axis. A short input may lack such a row."""
    if node.op_type != "Gather" or source.shape is None or shapes.rank(indices) > 1:
        return False
    size = shapes.dims(source)[attribute_int(node, "axis", 0)]
    return not isinstance(size, int) and indices_of(shapes, node) is None


def _read_by_others(shapes: Shapes, value: ir.Value, demands: Demands) -> bool:
    """Whether the graph's user, or a node that picks nothing, reads all of the value."""
    return value.is_graph_output() or any(
        Trait.PICKS not in operator_of(use.node).traits
        and demands.get(use.node.outputs[0]) == WHOLE_VALUE
        and demand_of(shapes, use.node, 0, WHOLE).inputs.get(use.idx) == WHOLE
        for use in value.uses()
    )


def in_words(part: Box) -> str:
    """A box for a message, such as "0 of axis 1"."""
    if part == WHOLE:
        return "all"
    return ", ".join(f"{_indices(chosen)} of axis {axis}" for axis, chosen in part)


def _indices(chosen: tuple[int, ...]) -> str:
    if len(chosen) > 2 and chosen == tuple(range(chosen[0], chosen[-1] + 1)):
        return f"{chosen[0]} to {chosen[-1]}"
    return ", ".join(map(str, chosen[:4])) + (" …" if len(chosen) > 4 else "")
