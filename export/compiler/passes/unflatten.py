"""Moves a Reshape that flattens tokens, (B, N, D) -> (B N, D), behind the operators that work row by row.

In: a graph with shapes. Out: the same outputs. Exporters flatten for the linear layers of GPT-2 and OPT, and for an
entire mixture of experts, and reshape back behind. In between, other passes cannot compute a row of every image. A row
of a product depends on the same row of its input, as do other operators:

    flat(x) W + b = flat(x W + b)       table[flat(i)] = flat(table[i])       TopK(flat(x)) = flat(TopK(x))

The Reshape then stands before the Reshape back, and `prepare` drops both. Refuses nothing by name: the Reshape stays
before an operator that mixes rows or has no rule here.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from export.compiler.analyses.axis_maps import input_axes
from export.compiler.graph.attributes import (
    attribute_float,
    attribute_int,
    attribute_ints,
    opset,
    optional,
    permutation,
)
from export.compiler.graph.constants import Constants, integers, is_constant, number
from export.compiler.graph.def_use import is_read, made_of
from export.compiler.graph.node_builder import Nodes, nodes_before
from export.compiler.graph.symbolic_shapes import WHOLE_NUMBERS, Dim, Shapes, product, same, same_shape
from export.compiler.operators.table import BROADCASTING, ELEMENTWISE, REDUCING

PER_ELEMENT = (ELEMENTWISE | BROADCASTING) - {"PRelu"}  # its slope must not have more axes than the value
DEFAULT_AXIS = {  # operators along one axis
    **dict.fromkeys(("LayerNormalization", "LogSoftmax", "OneHot", "Softmax", "TopK"), -1),
    **dict.fromkeys(("ArgMax", "ArgMin", "Concat", "Gather", "GatherElements", "ScatterElements", "Split"), 0),
}
AXES_INPUT = {**dict.fromkeys((*REDUCING, "Squeeze", "Unsqueeze"), 1), "Slice": 3}  # the input that names several axes
AXES_ARE_INPUTS = 13  # opset; before, a Softmax mixes several axes


def unflatten(graph: ir.Graph) -> bool:
    """In place; whether the graph changed."""
    unflattening = _Unflattening(graph)
    for node in list(graph):
        unflattening.visit(node)
    return unflattening.changed


class _Unflattening:
    def __init__(self, graph: ir.Graph) -> None:
        self.graph, self.shapes, self.constants = graph, Shapes(graph), Constants(graph)
        self.tokens: dict[ir.Value, ir.Value] = {}  # flat value (B N, ...) -> the same as tokens (B, N, ...)
        self.changed = False

    def visit(self, node: ir.Node) -> None:
        outputs = [*filter(is_read, node.outputs)]
        if node.domain or not outputs or any(out.shape is None or not out.shape.rank() for out in outputs):
            return
        if node.op_type in ("Flatten", "Reshape"):
            self._reshape(node, outputs[0])
            return
        flat = next((value for value in [*node.inputs, _shape_source(node)] if value in self.tokens), None)
        if flat is None or any(out.is_graph_output() for out in outputs):
            return
        rows = self.shapes.dims(flat)[0]
        if all(self._has_rows(out, rows) for out in outputs) and self._is_row_by_row(node, outputs):
            self._move(node, outputs, self._token_axes(flat))

    def _has_rows(self, out: ir.Value, rows: Dim) -> bool:
        """Whether the first axis of a value has this size and the others have known sizes above 0."""
        first, *features = self.shapes.dims(out)
        return same(first, rows) and all(isinstance(dim, int) and dim > 0 for dim in features)

    def _token_axes(self, flat: ir.Value) -> tuple[Dim, ...]:
        """The sizes, (B, N) or more, that the first axis of a flat value joins."""
        return self.shapes.dims(self.tokens[flat])[: self.shapes.rank(self.tokens[flat]) - self.shapes.rank(flat) + 1]

    def _reshape(self, node: ir.Node, out: ir.Value) -> None:
        """A Reshape back reads the tokens instead; a Reshape that flattens is noted in `tokens`."""
        source, after = node.inputs[0], self.shapes.dims(out)
        if source is None or source.shape is None:
            return
        tokens = self.tokens.get(source, source)
        before, features = self.shapes.dims(tokens), after[1:]
        if tokens is not source:
            token_axes = self._token_axes(source)
            behind = after[len(token_axes) :]
            if all(map(same, token_axes, after)) and behind and all(isinstance(dim, int) for dim in behind):
                node.replace_input_with(0, tokens)
                self.changed = True
                return
        elif len(after) != 2 and (len(after) != 1 or out.dtype not in WHOLE_NUMBERS):
            return
        if all(isinstance(dim, int) and dim > 0 for dim in features):
            ends = range(2, len(before) + 1)  # of the axes that the Reshape joins to rows
            end = next((end for end in ends if same_shape([product(before[end:])], [product(features)])), None)
            if end is not None:
                self.tokens[out] = self._with_axes(node, tokens, before[:end], features)

    def _with_axes(
        self, node: ir.Node, source: ir.Value, token_axes: Sequence[Dim], features: Sequence[Dim]
    ) -> ir.Value:
        """`source` as (*token_axes, *features)."""
        if same_shape(self.shapes.dims(source), [*token_axes, *features]):
            return source
        sizes = [*[0] * len(token_axes), *(dim for dim in features if isinstance(dim, int))]
        shape = ir.Shape([*token_axes, *features])
        return self._before(node).add("Reshape", [source, self.constants.add_integers(sizes, "tokens")], shape)

    def _is_row_by_row(self, node: ir.Node, outputs: Sequence[ir.Value]) -> bool:
        """Whether a row of the outputs depends on the same row of all flat inputs, and no other, as on tokens."""
        first, flat = optional(node, 0), {k: value for k, value in enumerate(node.inputs) if value in self.tokens}
        token_axes = [self._token_axes(value) for value in flat.values() if value is not None]
        match node.op_type:
            case "BatchNormalization":
                fits = self.shapes.rank(outputs[0]) == 2
            case "Gemm":
                fits = _is_product(node, optional(node, 2))
            case "GatherND":
                fits = not attribute_int(node, "batch_dims", 0)
            case "OneHot":  # without a rule
                return [*flat] == [0] and min(self._axes(node)) > 0
            case "QuantizeLinear" | "DequantizeLinear":
                fits = all(value is None or self.shapes.rank(value) == 0 for value in node.inputs[1:])
            case "Tile":
                fits = is_constant(optional(node, 1))
            case operator if first in self.tokens and (operator in DEFAULT_AXIS or operator in AXES_INPUT):
                is_old = operator != "LayerNormalization" and opset(node) < AXES_ARE_INPUTS
                fits = not is_old and min(self._axes(node), default=0) > 0
            case operator:
                fits = operator in PER_ELEMENT | {"Expand", "Gather", "MatMul", "Transpose"}
        same_tokens = all(same_shape(axes, token_axes[0]) for axes in token_axes)
        rows = dict.fromkeys(flat, 0)
        return fits and same_tokens and all(input_axes(self.shapes, node, out, 0) == rows for out in outputs)

    def _axes(self, node: ir.Node) -> list[int]:
        """The axes along which a node works, none below 0: with these ONNX Runtime does not sum an empty value."""
        if node.op_type in DEFAULT_AXIS:
            axes = [attribute_int(node, "axis", DEFAULT_AXIS[node.op_type])]
        else:
            axes = attribute_ints(node, "axes") or integers(optional(node, AXES_INPUT[node.op_type])) or []
        value = node.outputs[0] if node.op_type in ("OneHot", "Unsqueeze") else node.inputs[0]
        return [axis % self.shapes.rank(value) for axis in axes] if value is not None else []

    def _move(self, node: ir.Node, outputs: Sequence[ir.Value], token_axes: Sequence[Dim]) -> None:
        """Adds the operator on tokens, and behind it the Reshape, whose output takes the place of the flat output."""
        for out, tokens in zip(outputs, self._on_tokens(node, outputs, token_axes), strict=True):
            features = [dim for dim in self.shapes.dims(out)[1:] if isinstance(dim, int)]
            sizes = self.constants.add_integers([-1, *features], "flat")
            flat = self._before(node).add("Reshape", [tokens, sizes], out.shape)
            ir.convenience.replace_all_uses_with(out, flat)
            self.tokens[flat] = tokens
        self.changed = True

    def _on_tokens(self, node: ir.Node, outputs: Sequence[ir.Value], token_axes: Sequence[Dim]) -> list[ir.Value]:
        """The outputs of the operator on tokens, (*token_axes, ...)."""
        inputs = [self.tokens.get(value, value) if value is not None else None for value in node.inputs]
        shape, new_axes = ir.Shape([*token_axes, *self.shapes.dims(outputs[0])[1:]]), len(token_axes) - 1
        if node.op_type == "Gemm":
            return [self._product(node, inputs, shape)]
        if node.op_type == "BatchNormalization":  # over axis 1
            order, back = [0, new_axes + 1, *range(1, new_axes + 1)], [0, *range(2, new_axes + 2), 1]
            features_first = self._before(node).add("Transpose", [inputs[0]], perm=order)
            normed = self._before(node).add(node.op_type, [features_first, *inputs[1:]], **node.attributes)
            tokens = self._before(node).add("Transpose", [normed], shape, perm=back)
            tokens.name = self.constants.name(f"{outputs[0].name}_tokens")
            return [tokens]
        new = self._before(node).copy(node, inputs, "tokens")
        if (like := _shape_source(node)) in self.tokens and node.inputs[0] not in self.tokens:
            new.replace_input_with(1, self._before(new).add("Shape", [self.tokens[like]]))
        elif node.op_type in ("Expand", "Tile"):
            is_expand = node.op_type == "Expand"
            sizes = self.shapes.dims(outputs[0])[1:] if is_expand else (integers(node.inputs[1]) or [])[1:]
            repeats = [dim for dim in sizes if isinstance(dim, int)]
            new.replace_input_with(1, self.constants.add_integers([*[1] * len(token_axes), *repeats], "repeats"))
        elif node.op_type == "Transpose":
            order = permutation(node, self.shapes.rank(outputs[0]))
            new.attributes["perm"] = ir.AttrInt64s("perm", [*range(new_axes), *(axis + new_axes for axis in order)])
        elif node.op_type in DEFAULT_AXIS and node.inputs[0] in self.tokens:
            new.attributes["axis"] = ir.AttrInt64("axis", self._axes(node)[0] + new_axes)
        elif node.op_type in AXES_INPUT:
            axes = [axis + new_axes for axis in self._axes(node)]
            if "axes" in node.attributes:
                new.attributes["axes"] = ir.AttrInt64s("axes", axes)
            else:
                new.replace_input_with(AXES_INPUT[node.op_type], self.constants.add_integers(axes))
        new_outputs = [new.outputs[out.index() or 0] for out in outputs]
        for out, value in zip(outputs, new_outputs, strict=True):
            value.shape = ir.Shape([*token_axes, *self.shapes.dims(out)[1:]])
        return new_outputs

    def _product(self, node: ir.Node, inputs: Sequence[ir.Value | None], shape: ir.Shape) -> ir.Value:
        """A Gemm as MatMul and Add, which take tokens."""
        weight, bias = inputs[1], inputs[2] if len(inputs) > 2 else None
        if attribute_int(node, "transB", 0):
            weight = self._before(node).add("Transpose", [weight], perm=[1, 0])
        product_of_tokens = self._before(node).add("MatMul", [inputs[0], weight], shape)
        return product_of_tokens if bias is None else self._before(node).add("Add", [product_of_tokens, bias], shape)

    def _before(self, node: ir.Node) -> Nodes:
        return nodes_before(self.constants, node)


def _shape_source(node: ir.Node) -> ir.Value | None:
    """The value x of an Expand(number, Shape(x)), which fills x's shape; None for other nodes."""
    source = node.inputs[0] if node.op_type == "Expand" else None
    like = made_of(node.inputs[1], "Shape") if source is not None and number(source) is not None else None
    return like if like is not None and like.shape == node.outputs[0].shape else None


def _is_product(node: ir.Node, bias: ir.Value | None) -> bool:
    """Whether a Gemm is x W + b, without scales; W may be transposed."""
    scales = attribute_float(node, "alpha", 1.0), attribute_float(node, "beta", 1.0) if bias is not None else 1.0
    return scales == (1.0, 1.0) and not attribute_int(node, "transA", 0)
