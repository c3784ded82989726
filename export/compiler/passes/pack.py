"""Last pass: computes only the tokens that the mask shows, of a few texts of like length at a time.

In: a prepared graph and its mask (texts, tokens). Out: the same outputs. The longest texts come first:

    for a part of the texts, sorted by length:  y = network(its kept tokens)         outputs in the texts' own order

Within a part an operator on single tokens sees packed rows; attention sees n texts of s tokens, the longest's number.
A part has about AREA tokens, so that its values stay in the caches and a long text makes no short one longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.demand import sizes_read
from export.compiler.analyses.tokens import Tokens, analyse_tokens
from export.compiler.errors import Refused, Site
from export.compiler.graph.attributes import reads_shape_alone
from export.compiler.graph.constants import Array, Constants, of_type
from export.compiler.graph.nodes import BOOL, INT64, Nodes
from export.compiler.graph.readers import remove_unused
from export.compiler.graph.shapes import Shapes, same
from export.compiler.operators.costs import is_multiplying
from export.compiler.passes.materialise import Materialiser
from export.compiler.passes.outcome import Outcome
from export.compiler.passes.packed_body import Body
from export.compiler.passes.packed_texts import Part, number_part, number_texts, unsorted

OLDEST_OPSET = 11  # TopK of the smallest, Range, CumSum


def pack(model: ir.Model, mask: ir.Value, drawn: Sequence[Mapping[str, Array]]) -> Outcome:
    """`drawn`: inputs with masks of every kind, of which the pass sees what a mask does."""
    try:
        return Outcome(_pack(model, mask, drawn))
    except Refused as refused:
        remove_unused(model)
        return Outcome(refusals=(refused.refusal,))


def _pack(model: ir.Model, mask: ir.Value, drawn: Sequence[Mapping[str, Array]]) -> tuple[Site, ...]:
    """Raises Refused, and leaves the nodes as they were."""
    graph = model.graph
    if graph.opset_imports.get("", 0) < OLDEST_OPSET:
        raise Refused("", "opset", f"expected at least {OLDEST_OPSET}")
    tokens = analyse_tokens(Shapes(graph), mask, drawn)
    outputs = [value for value in graph.outputs if value in tokens.roles]
    products = [node for node in tokens.inside if is_multiplying(node)]
    if not outputs or not products:
        raise Refused(mask.name or "", "graph input", "no output is a product of tokens of texts")
    loop = _Loop(tokens, mask, outputs)
    for node in loop.outer.list:
        graph.append(node)
    for old, new in zip(outputs, loop.results, strict=True):
        loop.constants.replace(old, new, "padded")
    _rebuild_shapes(tokens)
    remove_unused(model)
    graph.sort()
    return tuple(
        Site(node.outputs[0].name or "", node.op_type, "computed only for tokens that the mask shows")
        for node in products
    )


class _Loop:
    """`outer` has the nodes, `results` the outputs in the order of the texts."""

    def __init__(self, tokens: Tokens, mask: ir.Value, outputs: Sequence[ir.Value]) -> None:
        self.tokens, self.outputs = tokens, outputs
        self.constants = Constants(tokens.shapes.graph)
        self.outer, self.inner = (Nodes(self.constants, "packed") for _ in range(2))
        picks = dict.fromkeys([*(pick.rows for pick in tokens.rows.values()), *tokens.entries.picks])
        self.texts = number_texts(self.outer, self._at_the_inputs(mask), [*picks])
        self.results = self._results(self._run())

    def _at_the_inputs(self, mask: ir.Value) -> ir.Value:
        """The mask, of as many texts and tokens as the other inputs.

        Without it a call with fewer rows in the mask would answer for these alone; now it ends with an error.
        """
        shapes, entries = self.tokens.shapes, self.tokens.entries
        for value in shapes.graph.inputs:
            dims = shapes.dims(value)
            if value is not entries.mask and len(dims) > 1 and all(map(same, dims, (entries.batch, entries.length))):
                mask = self.outer.add("Expand", [mask, self.outer.sizes(value, [0, 1])], mask.dtype)
        return mask

    def _run(self) -> list[ir.Value]:
        """What the loop joins: of each output the texts in sorted order, or the tokens and their places."""
        inner, outer = self.inner, self.outer
        number, more, start = self._value(INT64, []), self._value(BOOL, []), self._value(INT64, [1])
        part, end = number_part(inner, self.texts, start)
        body = Body(self.tokens, self.texts, part, inner)
        body.run()
        made = [each for output in self.outputs for each in self._made(body, part, output)]
        held = [self._value(value.dtype) for value, _ in made]
        pairs = zip(held, made, strict=True)
        joined = [inner.add("Concat", [before, value], value.dtype, {"axis": 0}) for before, (value, _) in pairs]
        rest = inner.scalar_of(inner.add("Less", [end, self.texts.count], BOOL))
        opsets = dict(self.tokens.shapes.graph.opset_imports)
        graph = ir.Graph(
            [number, more, start, *held], [rest, end, *joined], nodes=inner.list, opset_imports=opsets, name="part"
        )
        some = outer.scalar_of(outer.add("Greater", [self.texts.count, outer.integers([0])], BOOL))
        none = [self._empty(value.dtype, features) for value, features in made]
        given = [None, some, outer.integers([0]), *none]
        node = ir.node("Loop", given, {"body": ir.AttrGraph("body", graph)}, num_outputs=1 + len(held))
        outer.put(node, "packed_end", INT64)
        for result, (value, _) in zip(node.outputs[1:], made, strict=True):
            of_type(result, value.dtype).name = self.constants.name("packed_joined")
        return [*node.outputs[1:]]

    def _made(self, body: Body, part: Part, output: ir.Value) -> list[tuple[ir.Value, list[int]]]:
        """Each with the sizes of its axes behind the first."""
        features = self._features(output)
        if not self.tokens.roles[output].tokens:
            return [(body.grid(output), features)]
        rows = self.inner.reshape(body.packed(output), [-1, *features])
        return [(rows, features), (self.inner.reshape(body.at_rows(part.flat), [-1]), [])]

    def _features(self, output: ir.Value) -> list[int]:
        axes, dims = self.tokens.roles[output].axes(), self.tokens.shapes.dims(output)
        return [dim for axis, dim in enumerate(dims) if axis not in axes and isinstance(dim, int)]

    def _value(self, dtype: ir.DataType | None, shape: list[int] | None = None) -> ir.Value:
        value = ir.Value(name=self.constants.name("packed_held"), shape=None if shape is None else ir.Shape(shape))
        return of_type(value, dtype)

    def _empty(self, dtype: ir.DataType | None, features: Sequence[int]) -> ir.Value:
        kind = (dtype or ir.DataType.FLOAT).numpy()
        return self.constants.add(np.zeros((0, *features), kind), "packed_none", dtype)

    def _results(self, joined: Sequence[ir.Value]) -> list[ir.Value]:
        waiting, results, places = iter(joined), [], unsorted(self.texts)
        for output in self.outputs:
            value = next(waiting)
            if self.tokens.roles[output].tokens:
                results.append(self._padded(value, next(waiting), self._features(output)))
            else:
                results.append(self.outer.gather(value, places))
        return results

    def _padded(self, rows: ir.Value, places: ir.Value, features: Sequence[int]) -> ir.Value:
        """Zeros where the mask hides."""
        outer, texts = self.outer, self.texts
        number = self.constants.add(np.zeros((), (rows.dtype or ir.DataType.FLOAT).numpy()), "packed_zero", rows.dtype)
        zeros = outer.add("Expand", [number, outer.vector([texts.count, texts.length, *features])], rows.dtype)
        text = outer.add("Div", [places, outer.larger(texts.length, outer.integers([1]))])
        token = outer.add("Sub", [places, outer.add("Mul", [text, texts.length])])
        pairs = outer.add("Concat", [outer.unsqueeze(text, [1]), outer.unsqueeze(token, [1])], INT64, {"axis": 1})
        return outer.add("ScatterND", [zeros, pairs, rows], rows.dtype)


def _rebuild_shapes(tokens: Tokens) -> None:
    """Sizes that the loop and what is before it read of padded values come from the graph's inputs."""
    shapes = tokens.shapes
    building = Materialiser(shapes, {})
    for node in list(shapes.graph):
        if reads_shape_alone(node) and node.inputs[0] in tokens.roles and node.op_type == "Shape":
            ir.convenience.replace_all_uses_with(node.outputs[0], building.vector(sizes_read(shapes, node)))
