"""Last pass: computes only the tokens that the mask shows, of a few texts of like length at a time.

In: a prepared graph and its mask (texts, tokens). Out: the same outputs. The longest texts come first:

    if the mask shows every token:                   y = network(texts)
    else, for a part of the texts sorted by length:  y = network(its kept tokens)    outputs in the texts' own order

Within a part an operator on single tokens sees packed rows; attention sees n texts of s tokens, the longest's number.
A part has about AREA tokens, so that its values stay in the caches and a long text makes no short one longer.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass

from export.compiler.analyses.demand import sizes_read
from export.compiler.analyses.token_axes import Tokens, analyse_tokens
from export.compiler.errors import Refused, Site
from export.compiler.graph.attributes import attribute_int, reads_shape_alone
from export.compiler.graph.constants import Array, Constants, is_constant, of_type
from export.compiler.graph.def_use import is_read, remove_unused
from export.compiler.graph.node_builder import BOOL, INT64, Nodes
from export.compiler.graph.runtime_sizes import Sizes
from export.compiler.graph.shapes import Shapes, same
from export.compiler.operators.costs import is_multiplying
from export.compiler.passes.outcome import Outcome
from export.compiler.passes.packed_indices import Part, number_part, number_texts, unsorted
from export.compiler.passes.packed_loop_body import Body

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
    blocks = next((node for node in graph if attribute_int(node, "block_size", 0) and not node.domain), None)
    if blocks is not None:
        form = "as MatMulNBits (quant_format QOperator of its quantiser) they are packed"
        raise Refused.at(blocks, f"ONNX Runtime reads weights in such blocks in no branch or loop; {form}")
    tokens = analyse_tokens(Shapes(graph), mask, drawn)
    outputs = [value for value in graph.outputs if value in tokens.roles]
    products = [node for node in tokens.inside if is_multiplying(node)]
    if not outputs or not products:
        raise Refused(mask.name or "", "graph input", "no output is a product of tokens of texts")
    loop = _Loop(tokens, mask, outputs)
    _rebuild_shapes(tokens, loop.constants)
    for old, new in zip(outputs, loop.results, strict=True):
        _show(graph, old, new, loop.constants.name(f"{old.name}_padded"))
    loop.choose()
    for node in loop.outer.list:
        graph.append(node)
    _hold_numbers(graph, loop.constants)
    remove_unused(model)
    graph.sort()
    CommonSubexpressionEliminationPass()(model)  # ONNX Runtime warns of equal nodes that the loop reads
    return tuple(Site.at(node, "computed only for tokens that the mask shows") for node in products)


def _show(graph: ir.Graph, old: ir.Value, new: ir.Value, name: str) -> None:
    """`new` takes the place of `old` among the outputs; nodes that read `old` go on doing so."""
    new.name, old.name, new.type, new.shape = old.name, name, old.type, old.shape
    for position, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[position] = new


class _Loop:
    """`before`: nodes that number the texts, `outer` those that choose and loop; `results`: the outputs in the order of
    the texts; `answers`: what the loop hands on from the start, if every token is shown.
    """

    def __init__(self, tokens: Tokens, mask: ir.Value, outputs: Sequence[ir.Value]) -> None:
        self.tokens, self.mask, self.outputs = tokens, mask, outputs
        self.constants = Constants(tokens.shapes.graph)
        self.outer, self.before, self.inner, self.whole = (Nodes(self.constants, "packed") for _ in range(4))
        self.answers: dict[ir.Value, ir.Value] = {}
        picks = dict.fromkeys([*(pick.rows for pick in tokens.rows.values()), *tokens.entries.picks])
        self.texts = number_texts(self.before, self._at_the_inputs(self.before), [*picks], tokens.entries.trailing)
        self.results = self._results(self._run())

    def choose(self) -> None:
        """An If before the loop: the network as it was if the mask shows every token, else the texts' numbers.

        Its nodes move there. A loop in a branch would be slower: ONNX Runtime packs no weights two graphs below theirs.
        """
        before = {*self.before.list}
        used = [value for node in self.before.list for value in node.outputs if _others(value, before)]
        graph, opsets = self.tokens.shapes.graph, dict(self.tokens.shapes.graph.opset_imports)
        graph.remove(inside := self._read_by_network())
        for value in (value for node in inside for value in node.outputs):
            value.shape = None  # with shapes ONNX Runtime joins Add and LayerNormalization to a slower operator
        answers = [self.answers.get(value) or self._unread(value) for value in used]
        branches = {
            "then_branch": ir.Graph([], answers, nodes=[*inside, *self.whole.list], opset_imports=opsets, name="whole"),
            "else_branch": ir.Graph([], used, nodes=self.before.list, opset_imports=opsets, name="numbers"),
        }
        chosen = Nodes(self.constants, "packed")
        given = [self._is_whole(chosen)]
        attributes = [ir.AttrGraph(name, branch) for name, branch in branches.items()]
        node = ir.Node("", "If", given, attributes, num_outputs=len(used))
        chosen.put(node, "packed_chosen", used[0].dtype)
        for old, new in zip(used, node.outputs, strict=True):
            of_type(new, old.dtype).name = self.constants.name(f"{old.name}_chosen")
            for reader, position in _others(old, before):
                reader.replace_input_with(position, new)
        self.outer.list[:0] = chosen.list

    def _read_by_network(self) -> list[ir.Node]:
        """The network's nodes, and those before it that no other node reads."""
        graph, inside = self.tokens.shapes.graph, {*self.tokens.inside, *self.whole.list}
        for node in reversed(graph):
            read = any(map(is_read, node.outputs)) and not any(value.is_graph_output() for value in node.outputs)
            if read and not any(_others(value, inside) for value in node.outputs):
                inside.add(node)
        return [node for node in graph if node in inside]

    def _is_whole(self, nodes: Nodes) -> ir.Value:
        """Whether the mask shows as many tokens as the inputs have, and there is a text: of none some of ONNX Runtime's
        kernels end the process.
        """
        shown = nodes.add("Size", [nodes.add("NonZero", [nodes.cast(self.mask, BOOL)])])
        mask = self._at_the_inputs(nodes)
        places = nodes.add("Mul", [nodes.add("Size", [mask]), nodes.scalar(2)])  # of a text and a token, each
        some = nodes.add("Greater", [nodes.scalar_of(nodes.sizes(mask, [0])), nodes.scalar(0)], BOOL)
        return nodes.add("And", [nodes.add("Equal", [shown, places], BOOL), some], BOOL)

    def _at_the_inputs(self, nodes: Nodes) -> ir.Value:
        """The mask, of as many texts and tokens as the other inputs.

        Without it a call with fewer rows in the mask would answer for these alone; now it ends with an error.
        """
        mask, shapes, entries = self.mask, self.tokens.shapes, self.tokens.entries
        for value in shapes.graph.inputs:
            dims = shapes.dims(value)
            if value is not self.mask and len(dims) > 1 and all(map(same, dims, (entries.batch, entries.length))):
                mask = nodes.add("Expand", [mask, nodes.sizes(value, [0, 1])], mask.dtype)
        return mask

    def _run(self) -> list[ir.Value]:
        """What the loop joins: of each output the texts in sorted order, or the tokens and their places."""
        inner, before = self.inner, self.before
        number, more, start = self._value(INT64, []), self._value(BOOL, []), self._value(INT64, [1])
        part, end = number_part(inner, self.texts, start)
        body = Body(self.tokens, self.texts, part, inner, self.outer)
        body.run()
        made = [each for output in self.outputs for each in self._made(body, part, output)]
        held = [self._value(value.dtype) for value, _ in made]
        pairs = zip(held, made, strict=True)
        joined = [inner.add("Concat", [first, value], value.dtype, {"axis": 0}) for first, (value, _) in pairs]
        rest = inner.scalar_of(inner.add("Less", [end, self.texts.count], BOOL))
        opsets = dict(self.tokens.shapes.graph.opset_imports)
        graph = ir.Graph(
            [number, more, start, *held], [rest, end, *joined], nodes=inner.list, opset_imports=opsets, name="part"
        )
        some = before.scalar_of(before.add("Greater", [self.texts.count, before.integers([0])], BOOL))
        self.answers[some] = self.whole.add("Constant", [], BOOL, {"value": ir.AttrTensor("value", ir.tensor(False))})
        none = [self._zeros(before, value.dtype, [0, *features]) for value, features in made]
        self.answers |= zip(none, [each for output in self.outputs for each in self._whole(output)], strict=True)
        given = [None, some, before.integers([0]), *none]
        node = ir.node("Loop", given, {"body": ir.AttrGraph("body", graph)}, num_outputs=1 + len(held))
        self.outer.put(node, "packed_end", INT64)
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

    def _whole(self, output: ir.Value) -> list[ir.Value]:
        """What the loop would join, of the network as it was."""
        if not self.tokens.roles[output].tokens:
            return [output]
        rows = self.whole.reshape(output, [-1, *self._features(output)])
        return [rows, self._numbers(self.whole.scalar_of(self.whole.sizes(rows, [0])))]

    def _numbers(self, size: ir.Value) -> ir.Value:
        return self.whole.add("Range", [self.whole.scalar(0), size, self.whole.scalar(1)])

    def _unread(self, value: ir.Value) -> ir.Value:
        """Of its rank: without a rank ONNX Runtime joins no operators of the loop."""
        dims = value.shape.dims if value.shape is not None else ()
        return self._zeros(self.whole, value.dtype, [dim if isinstance(dim, int) else 0 for dim in dims])

    def _zeros(self, nodes: Nodes, dtype: ir.DataType | None, shape: Sequence[int]) -> ir.Value:
        kind = dtype or ir.DataType.FLOAT
        value = ir.tensor(np.zeros(shape, kind.numpy()), kind)
        return nodes.add("Constant", [], dtype, {"value": ir.AttrTensor("value", value)})

    def _results(self, joined: Sequence[ir.Value]) -> list[ir.Value]:
        waiting, results = iter(joined), []
        for output in self.outputs:
            value = next(waiting)
            if self.tokens.roles[output].tokens:
                results.append(self._padded(value, next(waiting), self._features(output)))
            else:
                results.append(self.outer.gather(value, self._places()))
        return results

    def _places(self) -> ir.Value:
        """Of each text among what the loop joins."""
        places = unsorted(self.texts)
        size = self.whole.gather(self.whole.add("Shape", [self.mask]), self.whole.scalar(0))
        self.answers[places] = self._numbers(size)
        return places

    def _padded(self, rows: ir.Value, places: ir.Value, features: Sequence[int]) -> ir.Value:
        """Zeros where the mask hides."""
        outer = self.outer
        number = self.constants.add(np.zeros((), (rows.dtype or ir.DataType.FLOAT).numpy()), "packed_zero", rows.dtype)
        count, length = (outer.sizes(self.mask, [axis]) for axis in (0, 1))
        zeros = outer.add("Expand", [number, outer.vector([count, length, *features])], rows.dtype)
        text = outer.add("Div", [places, outer.larger(length, outer.integers([1]))])
        token = outer.add("Sub", [places, outer.add("Mul", [text, length])])
        pairs = outer.add("Concat", [outer.unsqueeze(text, [1]), outer.unsqueeze(token, [1])], INT64, {"axis": 1})
        return outer.add("ScatterND", [zeros, pairs, rows], rows.dtype)


def _others(value: ir.Value, nodes: Container[ir.Node]) -> list[tuple[ir.Node, int]]:
    """Where other nodes read it."""
    return [use for use in value.uses() if use.node not in nodes]


def _hold_numbers(graph: ir.Graph, constants: Constants) -> None:
    """A Max of a single value behind each DequantizeLinear before the loop.

    ONNX Runtime would take it behind the nodes that turn its numbers, and ends its process where a loop reads those.
    """
    nodes = Nodes(constants, "packed", graph.append)
    for node in list(graph):
        if node.op_type == "DequantizeLinear" and not is_constant(node.inputs[0]):
            constants.replace(node.outputs[0], nodes.add("Max", node.outputs, node.outputs[0].dtype), "numbers")


def _rebuild_shapes(tokens: Tokens, constants: Constants) -> None:
    """Sizes that the loop and what is before it read of padded values come from the graph's inputs."""
    shapes = tokens.shapes
    nodes = Nodes(constants, "packed", shapes.graph.append)
    held = Sizes(shapes, nodes)
    for node in list(shapes.graph):
        if reads_shape_alone(node) and node.inputs[0] in tokens.roles:
            sizes = held.vector(sizes_read(shapes, node))
            if node.op_type == "Size":
                sizes = nodes.add("ReduceProd", [sizes], INT64, {"keepdims": 0})
            ir.convenience.replace_all_uses_with(node.outputs[0], sizes)
