"""Finds where a network gathers rows of each text (or image) by indices that are computed at run time.

In: the shapes of a prepared graph. Out: a `Choice` for each such Gather. Exporters write three forms. Decoders that
classify by the last token before the padding gather a row, in the first two forms; networks that label words gather
several, in the first and the last:

    y = GatherND(x, [[0, r_0], [1, r_1], ...])                y = Gather(Flatten(x), r + N * [0, 1, ...])
    y = GatherElements<axis = 1>(x, Expand(r))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from export.compiler.graph.attributes import attribute_int
from export.compiler.graph.constants import integers
from export.compiler.graph.def_use import made_by, made_of
from export.compiler.graph.symbolic_shapes import WHOLE_NUMBERS, Dim, Shapes, same, same_shape
from export.compiler.operators.shape_inference import elements_of
from export.compiler.operators.table import RESHAPES, view_of

OLDEST_OPSET = 12  # from it on GatherND has batch_dims, with which chosen rows are taken earlier


@dataclass(frozen=True)
class Choice:
    """`node` gathers from `whole` (batch, rows, ...) the rows with the indices `chosen`, `count` rows of each text.

    With a `count` of None it gathers a single row and drops the axis of rows. `flat` is None where `chosen` surely
    lies in the same text; else it holds the indices of the rows among those of all texts, (batch * rows).
    """

    node: ir.Node
    whole: ir.Value
    chosen: ir.Value
    count: Dim | None = None
    flat: ir.Value | None = None


def choices(shapes: Shapes) -> Iterator[Choice]:
    """In the order of the graph's nodes."""
    for node in shapes.graph:
        operands = [value for value in node.inputs if value is not None and value.shape is not None]
        if node.domain or len(operands) != 2 or len(node.inputs) != 2:
            continue
        choice = None
        if node.op_type == "GatherND" and not attribute_int(node, "batch_dims", 0):
            choice = _of_pairs(shapes, node, *operands)
        elif node.op_type == "Gather" and not attribute_int(node, "axis", 0):
            choice = _of_flat(shapes, node, *operands)
        elif node.op_type == "GatherElements" and attribute_int(node, "axis", 0) == 1:
            choice = _of_elements(shapes, node, *operands)
        if choice is not None:
            yield choice


def is_smaller(shapes: Shapes, choice: Choice) -> bool:
    """Whether the choice takes fewer rows than there are, at the sizes of `shapes`."""
    rows = shapes.dims(choice.whole)[1]
    return choice.count is None or shapes.nominal(choice.count) < shapes.nominal(rows)


def _of_pairs(shapes: Shapes, node: ir.Node, whole: ir.Value, pairs: ir.Value) -> Choice | None:
    """GatherND of pairs (text, row), which a Concat joins."""
    maker = made_by(pairs, "Concat")
    if maker is None or len(maker.inputs) != 2 or shapes.rank(whole) < 2:
        return None
    text_numbers, chosen = maker.inputs
    batch, dims = shapes.dims(whole)[0], shapes.dims(pairs)
    last = attribute_int(maker, "axis", 0) % len(dims) == len(dims) - 1
    if chosen is None or not last or len(dims) not in (2, 3) or not same(dims[0], batch):
        return None
    if shapes.rank(chosen) != len(dims) or not same(dims[-1], 2) or not counts(shapes, text_numbers, 0, batch):
        return None
    return Choice(node, whole, chosen, dims[1] if len(dims) == 3 else None)


def _of_elements(shapes: Shapes, node: ir.Node, whole: ir.Value, places: ir.Value) -> Choice | None:
    """GatherElements whose indices are the same for all features: an Expand repeats them along the last axis."""
    if not shapes.rank(whole) == shapes.rank(places) == 3:
        return None
    batch, count, features = shapes.dims(places)
    if not all(map(same, (batch, features), shapes.dims(whole)[::2])):
        return None
    if same(count, 1):  # sentence-transformers: `r.unsqueeze(-1).repeat(1, features).unsqueeze(1)`
        for index, axis in sources_along(shapes, places, 0):
            if not axis and all(same(dim, 1) for dim in shapes.dims(index)[1:]):
                return Choice(node, whole, index, 1)
    chosen = made_of(places, "Expand")
    if chosen is None or not same_shape(shapes.dims(chosen), (batch, count, 1)):
        return None
    return Choice(node, whole, chosen, count)


def _of_flat(shapes: Shapes, node: ir.Node, flat: ir.Value, places: ir.Value) -> Choice | None:
    """Gather of the flattened rows (batch * rows, features) at row + rows * text."""
    whole, add = made_of(flat, *RESHAPES), made_by(places, "Add")
    if whole is None or add is None or shapes.rank(whole) != 3 or shapes.rank(flat) != 2:
        return None
    batch, rows, features = shapes.dims(whole)
    dims = shapes.dims(places)
    if len(dims) != 1 or not same(dims[0], batch) or not same(shapes.dims(flat)[1], features):
        return None
    for chosen, starts in (add.inputs, reversed(add.inputs)):
        if chosen is not None and _starts(shapes, starts, batch, rows):
            if any(made_by(index, "ArgMax") for index, _ in sources_along(shapes, chosen, 0)):  # never negative
                return Choice(node, whole, chosen)
            sizes_known = shapes.is_known(batch) and shapes.is_known(rows)
            return Choice(node, whole, chosen, flat=places) if sizes_known else None
    return None


def _starts(shapes: Shapes, value: ir.Value | None, batch: Dim, rows: Dim) -> bool:
    """Whether the value is 0, rows, 2 * rows, ...: the number of each text's first row."""
    if isinstance(batch, int) and isinstance(rows, int):
        return integers(value) == [text * rows for text in range(batch)]
    maker = made_by(value, "Mul")
    return maker is not None and any(
        counts(shapes, text_numbers, 0, batch) and size is not None and _is_size(shapes, size, rows)
        for text_numbers, size in (maker.inputs, reversed(maker.inputs))
    )


def _is_size(shapes: Shapes, value: ir.Value, size: Dim) -> bool:
    elements = elements_of(value) or integers(value) or []
    return len(elements) == 1 and same(elements[0], size)


def counts(shapes: Shapes, value: ir.Value | None, axis: int, size: Dim) -> bool:
    """Whether the value is 0, 1, ..., size - 1 along the axis, repeated along its other axes."""
    if value is None or axis >= shapes.rank(value):
        return False
    *_, (value, axis) = sources_along(shapes, value, axis)
    if not same(shapes.dims(value)[axis], size):
        return False
    if (maker := made_by(value, "Range")) is not None:
        return [integers(maker.inputs[0]), integers(maker.inputs[2])] == [[0], [1]]
    return isinstance(size, int) and integers(value) == [*range(size)]


def sources_along(shapes: Shapes, value: ir.Value, axis: int) -> Iterator[tuple[ir.Value, int]]:
    """Values and axes with the same elements as `value` along `axis`, in the same order: `value`, then earlier values.

    Between them are only views and casts between int32 and int64; they may repeat the elements along other axes.
    """
    yield value, axis
    while (maker := value.producer()) is not None and maker.inputs:
        source = maker.inputs[0]
        if source is None or None in (source.shape, value.shape):
            return
        if made_by(value, "Cast") is None or not {source.dtype, value.dtype} <= WHOLE_NUMBERS:
            view = view_of(shapes, maker)
            sources = [k for k in range(shapes.rank(source)) if view.place(k) == axis] if view is not None else []
            if not sources or not same(shapes.dims(source)[sources[0]], shapes.dims(value)[axis]):
                return
            axis = sources[0]
        value = source
        yield value, axis
