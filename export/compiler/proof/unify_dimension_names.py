"""Gives the axes of texts and tokens the same names in all inputs.

In: a file and the name of its mask. Out: its graph, changed in place. By default torch.onnx names the axes of every
input differently, even if they must be equal. Trial runs tell: an axis is the mask's if the file answers with equal
sizes and fails with one more or one less. The file may also accept size 1, such as a single row of position ids for
all texts. Then the graph repeats that input to the mask's size.
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
from export.compiler.proof.original_file import Original

TEXTS, TOKENS = 3, 5  # neither is 1, which broadcasts


def share_names(original: Original, packed: str) -> None:
    """Renames the first two axes of inputs in place, where both are free. `packed`: the mask's name.

    Raises BadRequest if no input has that name, NotSupported if ONNX Runtime refuses the file.
    """
    graph = original.model.graph
    name_free_dimensions(graph)
    mask = mask_input(graph, packed)
    mask_names = _names(mask)
    others = [
        (name, shared)
        for value in graph.inputs
        for name, shared in (zip(_names(value), mask_names, strict=True) if mask_names and _names(value) else ())
        if name != shared
    ]
    if not others:
        return
    sizes = dict.fromkeys(free_dimensions(graph), TOKENS) | dict(zip(mask_names, (TEXTS, TOKENS), strict=True))
    sizes |= {name: sizes[shared] for name, shared in others}

    def answers(changed: dict[str, int]) -> bool:
        try:
            original.runner(draw(graph, sizes | changed))
        except NotSupported:
            return False
        return True

    if answers({}):
        independent = {name for name, _ in others if all(answers({name: sizes[name] + step}) for step in (-1, 1))}
        names = {name: shared for name, shared in others if name not in independent}
        single = {name for name in names if answers({name: 1})}
        repeated = [value for value in graph.inputs if not single.isdisjoint(_names(value))]
        _rename(graph, names)
        _repeat(graph, repeated, mask)


def _names(value: ir.Value) -> list[str]:
    """The names of the first two axes; empty unless both are free."""
    dims = [dim.value for dim in value.shape.dims[:2] if isinstance(dim, ir.SymbolicDim)] if value.shape else []
    return [str(dim) for dim in dims] if len(dims) == 2 else []


def _repeat(graph: ir.Graph, values: Sequence[ir.Value], mask: ir.Value) -> None:
    """Expands inputs whose first or second axis may have size 1 to the mask's texts and tokens."""
    nodes = nodes_before(Constants(graph), graph[0])
    for value in values:
        uses, names = value.uses(), zip(_names(value), _names(mask), strict=True)
        sizes = [nodes.sizes(mask, [axis]) if name == shared else 1 for axis, (name, shared) in enumerate(names)]
        features = [1] * (len(value.shape or ()) - len(sizes))
        repeated = nodes.add("Expand", [value, nodes.vector([*sizes, *features])])
        for reader, position in uses:
            reader.replace_input_with(position, repeated)


def _rename(graph: ir.Graph, names: dict[str, str]) -> None:
    """Renames symbols in the shapes of all values. `names`: old name -> new name."""
    for value in (*graph.inputs, *graph.outputs, *(output for node in graph for output in node.outputs)):
        if value.shape is not None:
            dims = (dim if isinstance(dim, int) else dim.value for dim in value.shape.dims)
            value.shape = ir.Shape([names.get(dim, dim) if isinstance(dim, str) else dim for dim in dims])
