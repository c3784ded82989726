"""Finds the axes of inputs that are the mask's texts and tokens under another name.

In: a file and its mask. Out: the same graph with one name for each. torch.onnx names the axes of each input apart
unless it is told otherwise. The file itself tells which are equal: it answers where they are, and fails where
one of them is smaller or where it is larger. The file may also take an input of a single row, such as places that all
texts share, or of a single token. Then the graph repeats that input to the mask's size.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from export.compiler.errors import NotSupported
from export.compiler.graph.constants import Constants
from export.compiler.graph.name_dimensions import name_free_dimensions
from export.compiler.graph.node_builder import nodes_before
from export.compiler.proof.inputs import draw, free_dimensions
from export.compiler.proof.masks import mask_input
from export.compiler.proof.original import Original

TEXTS, TOKENS = 3, 5  # neither is 1, which broadcasts


def share_names(original: Original, packed: str) -> None:
    """In place, for inputs whose first two axes are free. `packed`: the mask's name.

    Raises BadRequest for another name, NotSupported if ONNX Runtime refuses the file.
    """
    graph = original.model.graph
    name_free_dimensions(graph)
    mask = mask_input(graph, packed)
    own = _names(mask)
    others = [
        (name, shared)
        for value in graph.inputs
        for name, shared in (zip(_names(value), own, strict=True) if own and _names(value) else ())
        if name != shared
    ]
    if not others:
        return
    sizes = dict.fromkeys(free_dimensions(graph), TOKENS) | dict(zip(own, (TEXTS, TOKENS), strict=True))
    sizes |= {name: sizes[shared] for name, shared in others}

    def answers(changed: dict[str, int]) -> bool:
        try:
            original.runner(draw(graph, sizes | changed))
        except NotSupported:
            return False
        return True

    if answers({}):
        free = {name for name, _ in others if all(answers({name: sizes[name] + step}) for step in (-1, 1))}
        names = {name: shared for name, shared in others if name not in free}
        single = {name for name in names if answers({name: 1})}
        repeated = [value for value in graph.inputs if not single.isdisjoint(_names(value))]
        _rename(graph, names)
        _repeat(graph, repeated, mask)


def _names(value: ir.Value) -> list[str]:
    """Of the first two axes; none unless both are free."""
    dims = [dim.value for dim in value.shape.dims[:2] if isinstance(dim, ir.SymbolicDim)] if value.shape else []
    return [str(dim) for dim in dims] if len(dims) == 2 else []


def _repeat(graph: ir.Graph, values: Sequence[ir.Value], mask: ir.Value) -> None:
    nodes = nodes_before(Constants(graph), graph[0])
    for value in values:
        uses, names = value.uses(), zip(_names(value), _names(mask), strict=True)
        sizes = [nodes.sizes(mask, [axis]) if name == shared else 1 for axis, (name, shared) in enumerate(names)]
        rest = [1] * (len(value.shape or ()) - len(sizes))
        repeated = nodes.add("Expand", [value, nodes.vector([*sizes, *rest])], value.dtype)
        for reader, position in uses:
            reader.replace_input_with(position, repeated)


def _rename(graph: ir.Graph, names: dict[str, str]) -> None:
    for value in (*graph.inputs, *graph.outputs, *(output for node in graph for output in node.outputs)):
        if value.shape is not None:
            dims = (dim if isinstance(dim, int) else dim.value for dim in value.shape.dims)
            value.shape = ir.Shape([names.get(dim, dim) if isinstance(dim, str) else dim for dim in dims])
