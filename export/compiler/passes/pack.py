"""Packs texts: computes only the tokens that the mask shows, for a few texts of similar length at a time.

In: a prepared graph and its mask (texts, tokens). Out: the same outputs; of an output of tokens the hidden ones are 0.
The texts are sorted by length, the longest first, and the outputs put back into the original order:

    if the mask shows every token:    y = network(texts)
    else, for each part of the texts: y[part] = network(kept tokens of the part)

Within a part an operator on single tokens sees packed rows; attention sees n texts with the length s of the longest.
A part has about AREA tokens: its values stay in the caches, and a long text makes no short text longer.
This is the last pass, as no other pass reads loops.

Reads the token axes and masks of `analyse_tokens`. Refuses, by the name of the operator in the way: an output that may
depend on a hidden token (see there), weights in blocks, an opset before 11, a graph without a product of tokens.
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
from export.compiler.graph.symbolic_shapes import Shapes, same
from export.compiler.operators.costs import is_multiplying
from export.compiler.passes.outcome import Outcome
from export.compiler.passes.packed_indices import Part, index_part, index_texts, sorted_positions
from export.compiler.passes.packed_loop_body import Body

OLDEST_OPSET = 11  # TopK of the smallest, Range, CumSum


def pack(model: ir.Model, mask: ir.Value, drawn: Sequence[Mapping[str, Array]]) -> Outcome:
    """`drawn`: inputs with masks of every kind, on which the analysis evaluates what the mask does."""
    try:
        return Outcome(_pack(model, mask, drawn))
    except Refused as refused:
        remove_unused(model)
        return Outcome(refusals=(refused.refusal,))


def _pack(model: ir.Model, mask: ir.Value, drawn: Sequence[Mapping[str, Array]]) -> tuple[Site, ...]:
    """Raises Refused; then the nodes that compute the outputs are as before."""
    graph = model.graph
    if graph.opset_imports.get("", 0) < OLDEST_OPSET:
        raise Refused("", "opset", f"expected at least {OLDEST_OPSET}")
    blockwise = next((node for node in graph if attribute_int(node, "block_size", 0) and not node.domain), None)
    if blockwise is not None:
        form = "as MatMulNBits (quant_format QOperator of its quantiser) they are packed"
        raise Refused.at(blockwise, f"ONNX Runtime reads weights in such blocks in no branch or loop; {form}")
    tokens = analyse_tokens(Shapes(graph), mask, drawn)
    outputs = [value for value in graph.outputs if value in tokens.roles]
    products = [node for node in tokens.inside if is_multiplying(node)]
    if not outputs or not products:
        raise Refused(mask.name or "", "graph input", "no output is a product of tokens of texts")
    loop = _Loop(tokens, mask, outputs)
    _rebuild_shapes(tokens, loop.constants)
    for old, new in zip(outputs, loop.results, strict=True):
        _replace_output(graph, old, new, loop.constants.name(f"{old.name}_padded"))
    loop.add_branches()
    for node in loop.outer.list:
        graph.append(node)
    _shield_dequantised(graph, loop.constants)
    remove_unused(model)
    graph.sort()
    CommonSubexpressionEliminationPass()(model)  # ONNX Runtime warns of equal nodes that the loop reads
    return tuple(Site.at(node, "computed only for tokens that the mask shows") for node in products)


def _replace_output(graph: ir.Graph, old: ir.Value, new: ir.Value, name: str) -> None:
    """Puts `new` in the place of the output `old`, with its name; `old` gets `name`, and its readers stay."""
    new.name, old.name, new.type, new.shape = old.name, name, old.type, old.shape
    for position, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[position] = new


class _Loop:
    """Builds the loop over the parts, and an If before it.

    - `before`: nodes that compute the indices of the texts; they become the If's branch for masks that hide tokens.
    - `inner`: nodes of the loop's body.
    - `outer`: the If, the loop and the nodes behind it.
    - `full`: nodes of the other branch, for a mask that shows every token; there the original network is computed.
    - `full_values`: for a value of `before` what the other branch returns instead. The loop then has no iteration, and
      hands the original network's outputs on.
    - `results`: the outputs in the order of the texts.
    """

    def __init__(self, tokens: Tokens, mask: ir.Value, outputs: Sequence[ir.Value]) -> None:
        self.tokens, self.mask, self.outputs = tokens, mask, outputs
        self.constants = Constants(tokens.shapes.graph)
        self.outer, self.before, self.inner, self.full = (Nodes(self.constants, "packed") for _ in range(4))
        self.full_values: dict[ir.Value, ir.Value] = {}
        picks = dict.fromkeys([*(pick.rows for pick in tokens.rows.values()), *tokens.entries.picks])
        self.texts = index_texts(self.before, self._expanded_mask(self.before), [*picks], tokens.entries.trailing)
        self.results = self._results(self._add_loop())

    def add_branches(self) -> None:
        """Adds the If before the loop, and moves the original network's nodes into its first branch.

        The loop itself is in no branch, which would be slower: ONNX Runtime packs no weights two graphs below theirs.
        """
        before = {*self.before.list}
        used = [value for node in self.before.list for value in node.outputs if _uses_outside(value, before)]
        graph, opsets = self.tokens.shapes.graph, dict(self.tokens.shapes.graph.opset_imports)
        graph.remove(network := self._network_nodes())
        for value in (value for node in network for value in node.outputs):
            value.shape = None  # with shapes ONNX Runtime fuses Add and LayerNormalization to a slower operator
        full_values = [self.full_values.get(value) or self._placeholder(value) for value in used]
        full_nodes = [*network, *self.full.list]
        branches = {
            "then_branch": ir.Graph([], full_values, nodes=full_nodes, opset_imports=opsets, name="whole"),
            "else_branch": ir.Graph([], used, nodes=self.before.list, opset_imports=opsets, name="numbers"),
        }
        condition_nodes = Nodes(self.constants, "packed")
        condition = self._shows_every_token(condition_nodes)
        attributes = [ir.AttrGraph(name, branch) for name, branch in branches.items()]
        node = ir.Node("", "If", [condition], attributes, num_outputs=len(used))
        condition_nodes.put(node, "packed_chosen", used[0].dtype)
        for old, new in zip(used, node.outputs, strict=True):
            of_type(new, old.dtype).name = self.constants.name(f"{old.name}_chosen")
            for reader, position in _uses_outside(old, before):
                reader.replace_input_with(position, new)
        self.outer.list[:0] = condition_nodes.list

    def _network_nodes(self) -> list[ir.Node]:
        """The nodes that the first branch needs alone: the network's, and those before it that only they read."""
        graph, network = self.tokens.shapes.graph, {*self.tokens.inside, *self.full.list}
        for node in reversed(graph):
            read = any(map(is_read, node.outputs)) and not any(value.is_graph_output() for value in node.outputs)
            if read and not any(_uses_outside(value, network) for value in node.outputs):
                network.add(node)
        return [node for node in graph if node in network]

    def _shows_every_token(self, nodes: Nodes) -> ir.Value:
        """Whether the mask shows as many tokens as the inputs have, BOOL [].

        False without a text: on empty values some of ONNX Runtime's kernels end the process.
        """
        shown = nodes.add("Size", [nodes.add("NonZero", [nodes.cast(self.mask, BOOL)])])
        mask = self._expanded_mask(nodes)
        index_count = nodes.add("Mul", [nodes.add("Size", [mask]), nodes.scalar(2)])  # NonZero gives two a token
        has_texts = nodes.add("Greater", [nodes.scalar_of(nodes.sizes(mask, [0])), nodes.scalar(0)])
        return nodes.add("And", [nodes.add("Equal", [shown, index_count]), has_texts])

    def _expanded_mask(self, nodes: Nodes) -> ir.Value:
        """The mask, expanded to the texts and tokens of the other inputs.

        A call whose mask has fewer rows than they have ends with an error. Without the Expand it would compute only
        those rows.
        """
        mask, shapes, entries = self.mask, self.tokens.shapes, self.tokens.entries
        for value in shapes.graph.inputs:
            dims = shapes.dims(value)
            if value is not self.mask and len(dims) > 1 and all(map(same, dims, (entries.batch, entries.length))):
                mask = nodes.add("Expand", [mask, nodes.sizes(value, [0, 1])])
        return mask

    def _add_loop(self) -> list[ir.Value]:
        """Adds the loop. Returns what it concatenates of all parts, as `_part_values` says, in the sorted order."""
        inner, before = self.inner, self.before
        iteration, condition, start = self._value(INT64, []), self._value(BOOL, []), self._value(INT64, [1])
        part, end = index_part(inner, self.texts, start)
        body = Body(self.tokens, self.texts, part, inner, self.outer)
        body.run()
        part_values = [pair for output in self.outputs for pair in self._part_values(body, part, output)]
        carried = [self._value(value.dtype) for value, _ in part_values]
        extended = [
            inner.add("Concat", [previous, value], axis=0)
            for previous, (value, _) in zip(carried, part_values, strict=True)
        ]
        goes_on = inner.scalar_of(inner.add("Less", [end, self.texts.count]))
        graph = ir.Graph(
            [iteration, condition, start, *carried],
            [goes_on, end, *extended],
            nodes=inner.list,
            opset_imports=dict(self.tokens.shapes.graph.opset_imports),
            name="part",
        )
        has_texts = before.scalar_of(before.add("Greater", [self.texts.count, before.integers([0])]))
        false = ir.AttrTensor("value", ir.tensor(False))
        self.full_values[has_texts] = self.full.add("Constant", [], value=false)
        initial = [self._zeros(before, value.dtype, [0, *features]) for value, features in part_values]
        full_values = [value for output in self.outputs for value in self._full_values(output)]
        self.full_values |= zip(initial, full_values, strict=True)
        operands = [None, has_texts, before.integers([0]), *initial]
        node = ir.node("Loop", operands, {"body": ir.AttrGraph("body", graph)}, num_outputs=1 + len(carried))
        self.outer.put(node, "packed_end", INT64)
        for result, (value, _) in zip(node.outputs[1:], part_values, strict=True):
            of_type(result, value.dtype).name = self.constants.name("packed_joined")
        return [*node.outputs[1:]]

    def _part_values(self, body: Body, part: Part, output: ir.Value) -> list[tuple[ir.Value, list[int]]]:
        """What a part gives for an output: its texts' rows, or its tokens' rows and their indices among all tokens.

        With each value the sizes of its axes behind the first.
        """
        features = self._features(output)
        if not self.tokens.roles[output].tokens:
            return [(body.grid(output), features)]
        rows = self.inner.reshape(body.packed(output), [-1, *features])
        return [(rows, features), (self.inner.reshape(body.at_rows(part.flat_indices), [-1]), [])]

    def _features(self, output: ir.Value) -> list[int]:
        """The sizes of the axes that are neither texts nor tokens."""
        axes, dims = self.tokens.roles[output].axes(), self.tokens.shapes.dims(output)
        return [dim for axis, dim in enumerate(dims) if axis not in axes and isinstance(dim, int)]

    def _value(self, dtype: ir.DataType | None, shape: list[int] | None = None) -> ir.Value:
        """A new input of the loop's body."""
        value = ir.Value(name=self.constants.name("packed_held"), shape=None if shape is None else ir.Shape(shape))
        return of_type(value, dtype)

    def _full_values(self, output: ir.Value) -> list[ir.Value]:
        """As `_part_values`, for all texts and by the original network."""
        if not self.tokens.roles[output].tokens:
            return [output]
        rows = self.full.reshape(output, [-1, *self._features(output)])
        return [rows, self._range(self.full.scalar_of(self.full.sizes(rows, [0])))]

    def _range(self, size: ir.Value) -> ir.Value:
        """0 to `size` - 1, in the first branch: the indices of texts or tokens that are not sorted."""
        return self.full.range(size)

    def _placeholder(self, value: ir.Value) -> ir.Value:
        """Returned for a value that only the loop's body reads, which then does not run.

        It has the value's rank: without ranks ONNX Runtime fuses no operators of the body.
        """
        dims = value.shape.dims if value.shape is not None else ()
        return self._zeros(self.full, value.dtype, [dim if isinstance(dim, int) else 0 for dim in dims])

    def _zeros(self, nodes: Nodes, dtype: ir.DataType | None, shape: Sequence[int]) -> ir.Value:
        known_dtype = dtype or ir.DataType.FLOAT
        tensor = ir.tensor(np.zeros(shape, known_dtype.numpy()), known_dtype)
        return nodes.add("Constant", [], value=ir.AttrTensor("value", tensor))

    def _results(self, concatenated: Sequence[ir.Value]) -> list[ir.Value]:
        """The graph's outputs, of what the loop has concatenated."""
        remaining, results = iter(concatenated), []
        for output in self.outputs:
            rows = next(remaining)
            if self.tokens.roles[output].tokens:
                results.append(self._padded(rows, next(remaining), self._features(output)))
            else:
                results.append(self.outer.gather(rows, self._sorted_positions()))
        return results

    def _sorted_positions(self) -> ir.Value:
        """(texts), where the loop has put each text."""
        positions = sorted_positions(self.texts)
        size = self.full.gather(self.full.add("Shape", [self.mask]), self.full.scalar(0))
        self.full_values[positions] = self._range(size)
        return positions

    def _padded(self, rows: ir.Value, indices: ir.Value, features: Sequence[int]) -> ir.Value:
        """The tokens' rows, which have these indices among all tokens, as (texts, tokens, ...) with zeros elsewhere."""
        outer = self.outer
        number = self.constants.add(np.zeros((), (rows.dtype or ir.DataType.FLOAT).numpy()), "packed_zero", rows.dtype)
        count, length = (outer.sizes(self.mask, [axis]) for axis in (0, 1))
        zeros = outer.add("Expand", [number, outer.vector([count, length, *features])])
        text = outer.add("Div", [indices, outer.larger(length, outer.integers([1]))])
        token = outer.add("Sub", [indices, outer.add("Mul", [text, length])])
        pairs = outer.add("Concat", [outer.unsqueeze(text, [1]), outer.unsqueeze(token, [1])], axis=1)
        return outer.add("ScatterND", [zeros, pairs, rows])


def _uses_outside(value: ir.Value, nodes: Container[ir.Node]) -> list[tuple[ir.Node, int]]:
    """The uses of a value by nodes other than these: node and position of the input."""
    return [use for use in value.uses() if use.node not in nodes]


def _shield_dequantised(graph: ir.Graph, constants: Constants) -> None:
    """Puts a Max of a single input, which changes nothing, behind every DequantizeLinear before the loop.

    Without it ONNX Runtime moves the DequantizeLinear behind nodes that move its elements. Where the loop reads their
    output this ends the process.
    """
    nodes = Nodes(constants, "packed", graph.append)
    for node in list(graph):
        if node.op_type == "DequantizeLinear" and not is_constant(node.inputs[0]):
            constants.replace(node.outputs[0], nodes.add("Max", node.outputs), "numbers")


def _rebuild_shapes(tokens: Tokens, constants: Constants) -> None:
    """Computes the sizes that nodes read of padded values from the graph's inputs: those values go into a branch."""
    shapes = tokens.shapes
    nodes = Nodes(constants, "packed", shapes.graph.append)
    runtime_sizes = Sizes(shapes, nodes)
    for node in list(shapes.graph):
        if reads_shape_alone(node) and node.inputs[0] in tokens.roles:
            sizes = runtime_sizes.vector(sizes_read(shapes, node))
            if node.op_type == "Size":
                sizes = nodes.add("ReduceProd", [sizes], keepdims=0)
            ir.convenience.replace_all_uses_with(node.outputs[0], sizes)
