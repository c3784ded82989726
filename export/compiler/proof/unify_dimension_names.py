"""Gives axes that must be equal the same names in all inputs.

In: a file, and the name of its mask if its hidden tokens are left out. Out: its graph, changed in place. By default
torch.onnx and tf2onnx name the axes of every input differently, even if they must be equal. Trial runs tell: two axes
are equal if the file answers with equal sizes and fails with one more, one less and twice as many. The file may also
accept size 1, such as a single row of position ids for all texts. If it answers as for the row repeated, the graph
repeats that input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np
import onnx_ir as ir

from export.compiler.errors import NotSupported
from export.compiler.graph.constants import Array, Constants
from export.compiler.graph.name_dimensions import name_free_dimensions
from export.compiler.graph.node_builder import nodes_before
from export.compiler.graph.symbolic_shapes import is_symbol
from export.compiler.proof.inputs import draw, free_dimensions, is_past
from export.compiler.proof.masks import TEXTS, TOKENS, mask_input
from export.compiler.proof.original_file import Original
from export.compiler.proof.tolerances import alike


def share_names(original: Original, packed: str | None = None) -> dict[str, str]:
    """Renames the first two axes of inputs in place, where both are free. Returns old name -> new name.

    packed: the mask's name; the others get its names. Without it they get those of the first input, but not in decoders
    with a past, whose axes are sums. Raises BadRequest if no input has that name, NotSupported if ONNX Runtime refuses
    the file.
    """
    graph, settled, renamed = original.model.graph, set[str](), dict[str, str]()
    name_free_dimensions(graph)
    free = [] if any(map(is_past, graph.inputs)) else graph.inputs
    for reference in free if packed is None else [mask_input(graph, packed)]:
        if {*_names(reference)} - settled:
            settled |= {*_names(reference)}
            renamed |= _share(original, reference, is_mask=packed is not None)
    return renamed


def _share(original: Original, reference: ir.Value, is_mask: bool) -> dict[str, str]:
    """Gives axes of other inputs the names of `reference`."""
    trials = _Trials(original, reference)
    if not trials.pairs or trials.answers({}) is None:
        return {}
    equal, single = _equal_to_mask(trials) if is_mask else _equal(trials)
    graph = original.model.graph
    _repeat(graph, reference, trials.others, equal, single)
    for value in (*graph.inputs, *graph.outputs, *(output for node in graph for output in node.outputs)):
        if value.shape is not None:
            dims = (dim if isinstance(dim, int) else dim.value for dim in value.shape.dims)
            value.shape = ir.Shape([equal.get(dim, dim) if isinstance(dim, str) else dim for dim in dims])
    return equal


def _equal(trials: _Trials) -> tuple[dict[str, str], set[str]]:
    """The axes that must be equal, with the reference's, and those of both that may have size 1 instead."""
    fixed = {name for name in (*trials.pairs, *trials.pairs.values()) if not any(trials.at_other_sizes(name))}
    equal = {name: shared for name, shared in trials.pairs.items() if {name, shared} <= fixed}
    single = {name: trials.answers({name: 1}) for name in (*equal, *equal.values())}
    answered = {name: answers for name, answers in single.items() if answers is not None}
    unlike = {name for name, found in answered.items() if not _alike(found, trials.answers({name: 1}, repeated=True))}
    equal = {name: shared for name, shared in equal.items() if not {name, shared} & unlike}
    return equal, answered.keys() - unlike


def _equal_to_mask(trials: _Trials) -> tuple[dict[str, str], set[str]]:
    """As `_equal`, where the mask shows or hides each token of each text: the mask's axes may not have size 1."""
    equal = {name: shared for name, shared in trials.pairs.items() if not all(trials.at_other_sizes(name))}
    return equal, {name for name in equal if trials.answers({name: 1}) is not None}


class _Trials:
    """Runs the file at sizes that agree with those of `reference`.

    `others`: the other inputs whose first two axes are free. `pairs`: the name of an axis -> that of the reference.
    """

    def __init__(self, original: Original, reference: ir.Value) -> None:
        self.original, self.graph, self.reference = original, original.model.graph, reference
        shared = _names(reference)
        self.others = [value for value in self.graph.inputs if value is not reference and _names(value) and shared]
        pairs = {pair for value in self.others for pair in zip(_names(value), shared, strict=True)}
        self.pairs = {name: shared_name for name, shared_name in sorted(pairs) if name not in shared}
        self.sizes = dict.fromkeys(free_dimensions(self.graph), TOKENS) | dict(
            zip(shared, (TEXTS, TOKENS), strict=False)
        )
        self.sizes |= {name: self.sizes[shared_name] for name, shared_name in self.pairs.items()}

    def answers(self, changed: Mapping[str, int], repeated: bool = False) -> dict[str, Array] | None:
        """The answers at other sizes; None if the file fails. `repeated`: inputs are repeated to the usual sizes."""
        feeds = draw(self.graph, {**self.sizes, **changed})
        for value in (self.reference, *self.others) if repeated else ():
            counts = [self.sizes[name] if name in changed else 1 for name in _names(value)]
            array = feeds[str(value.name)]
            feeds[str(value.name)] = np.tile(array, counts + [1] * (array.ndim - len(counts)))
        try:
            return self.original.runner(feeds)
        except NotSupported:
            return None

    def at_other_sizes(self, name: str) -> list[bool]:
        """Whether the file answers with one less, one more, and twice as many along an axis."""
        size = self.sizes[name]
        return [self.answers({name: other}) is not None for other in (size - 1, size + 1, 2 * size)]


def _alike(answers: Mapping[str, Array], others: Mapping[str, Array] | None) -> bool:
    return others is not None and all(alike(array, others[name]) for name, array in answers.items())


def _names(value: ir.Value) -> list[str]:
    """The names of the first two axes; empty unless both are free."""
    dims = value.shape.dims[:2] if value.shape else ()
    names = [str(dim.value) for dim in dims if isinstance(dim, ir.SymbolicDim) and is_symbol(dim)]
    return names if len(names) == 2 else []


def _repeat(
    graph: ir.Graph, reference: ir.Value, others: Sequence[ir.Value], equal: Mapping[str, str], single: Set[str]
) -> None:
    """Expands inputs to each other's sizes along the axes `single`. `equal`: an axis -> that of the reference."""
    nodes, shared = nodes_before(Constants(graph), graph[0]), _names(reference)
    uses = {value: value.uses() for value in (reference, *others)}
    axes = {value: [k for k, name in enumerate(_names(value)) if equal.get(name) == shared[k]] for value in others}

    def repeated(value: ir.Value, names: Sequence[str], like: ir.Value, axes: Sequence[int]) -> ir.Value:
        along = {axis for axis in axes if names[axis] in single}
        sizes = [nodes.sizes(like, [axis]) if axis in along else 1 for axis in range(len(value.shape or ()))]
        return nodes.add("Expand", [value, nodes.vector(sizes)], value.shape) if along else value

    full = reference
    for value in others:
        full = repeated(full, shared, value, axes[value])
    for value in (reference, *others):
        new = full if value is reference else repeated(value, _names(value), full, axes[value])
        for reader, position in uses[value] if new is not value else ():
            reader.replace_input_with(position, new)
