"""The nodes of a network for some texts: token by token on packed rows, and on a grid of texts where tokens meet.

In: `Tokens`, and the numbers of a part of the texts. Out: the part's values in two forms:

    grid      as in the original, with n texts of s tokens
    packed    of texts and tokens first: (1, t, ...), the kept tokens alone; an operator runs as on a single text
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.token_axes import PickedTokens, Tokens, is_shape_input
from export.compiler.errors import Refused
from export.compiler.graph.attributes import given
from export.compiler.graph.constants import is_constant
from export.compiler.graph.node_builder import Nodes
from export.compiler.graph.runtime_sizes import Sizes
from export.compiler.graph.shapes import Dim, same
from export.compiler.operators.table import BROADCASTING, REPEATING, RESIZING, Trait, operator_of
from export.compiler.passes.packed_indices import Part, Texts

OLDEST_OPSET = 12  # batch_dims of GatherND
ALLOWS_ZERO = 14  # before, a Reshape to no tokens copies the size of another axis
NARROW = {ir.DataType.INT8, ir.DataType.UINT8}
TAIL_ALIGNED = BROADCASTING | REPEATING | {"MatMul"}


class Body:
    """`nodes` adds nodes in the loop, `outer` before it, and `views` those before it that move nothing."""

    def __init__(self, tokens: Tokens, texts: Texts, part: Part, nodes: Nodes, views: Nodes) -> None:
        self.tokens, self.shapes = tokens, tokens.shapes
        self._opset = self.shapes.graph.opset_imports.get("", 0)
        self.texts, self.part, self.nodes, self.outer, self.views = texts, part, nodes, texts.nodes, views
        self._grids: dict[tuple[ir.Value, int, int], ir.Value] = {}
        self._packed: dict[ir.Value, ir.Value] = {}
        self._flat: dict[ir.Value, ir.Value] = {}
        self._weights: dict[ir.Value, ir.Value] = {}
        self._sizes = Sizes(self.shapes, views)
        self._zero = {"allowzero": 1} if self._opset >= ALLOWS_ZERO else {}

    def run(self) -> None:
        for node in self.tokens.inside:
            if node in self.tokens.rows:
                self._pick(node)
            elif self._is_packed(node):
                self._copy(node, packed=True)
            else:
                self._copy(node, packed=False)

    def packed(self, value: ir.Value) -> ir.Value:
        """(1, t, ...), of texts and tokens first, or of tokens alone: (t, ...) if they are the first axis."""
        if value not in self._packed:
            self._packed[value] = self._pack(value)
        return self._packed[value]

    def grid(self, value: ir.Value, rank: int | None = None, batch: int = 0) -> ir.Value:
        """As the original, of this rank with texts at `batch` if it had no texts of its own."""
        rank = rank or self.shapes.rank(value)
        if (value, rank, batch) not in self._grids:
            if value in self.tokens.roles:
                self._grids[value, rank, batch] = self._unpack(value)
            else:
                self._grids[value, rank, batch] = self._of_texts(value, rank, batch)
        return self._grids[value, rank, batch]

    def _is_packed(self, node: ir.Node) -> bool:
        """Whether all its inputs and outputs can be packed; a softmax of tokens would join those of all texts, and a
        table of places may be shorter than the rows of a part.
        """
        if node in self.tokens.joining or Trait.BOUND in operator_of(node).traits:
            return False
        for output in node.outputs:
            if output in self.tokens.roles and not self.tokens.leads(output):
                return False
            if output.dtype in NARROW and self.hides(output):  # its 0 is a zero point
                return False
        rank = self.shapes.rank(node.outputs[0])
        return all(
            value is None or is_constant(value) or is_shape_input(node, k) or self._can_pack(value, rank)
            for k, value in enumerate(node.inputs)
        )

    def _can_pack(self, value: ir.Value, rank: int) -> bool:
        roles, dims = self.tokens.role(value), self.shapes.dims(value)
        if roles.batch is not None and roles.tokens:
            return self.tokens.leads(value)
        if value in self.tokens.roles or not roles.axes():
            return not roles.axes()
        if roles.batch is not None:
            return roles.batch == 0 and len(dims) == rank and same(dims[1], 1)
        first = len(dims) - rank + 1  # the axis that meets the tokens
        return roles.tokens == (first,) and all(same(dim, 1) for dim in dims[:first])

    def _pack(self, value: ir.Value) -> ir.Value:
        part, nodes, roles = self.part, self.nodes, self.tokens.role(value)
        if value in self.tokens.roles:
            return nodes.gather(self._flattened(value), part.rows)
        if roles.axes() == (0, 1):
            return nodes.gather(self._flattened(value), self.at_rows(part.flat))
        if roles.batch is None:
            return nodes.gather(value, self.at_rows(part.places, single=True), roles.tokens[0])
        length = nodes.vector([part.count, part.length])
        texts = nodes.add("Expand", [nodes.unsqueeze(part.texts, [1]), length])
        return nodes.gather(self._flattened(value), self.at_rows(texts))

    def at_rows(self, numbers: ir.Value, single: bool = False) -> ir.Value:
        """(1, t) or, for an axis of its own, (t) of (n, s) numbers."""
        rows = self.nodes.reshape(self.part.rows, [-1]) if single else self.part.rows
        return self.nodes.gather(self.nodes.reshape(numbers, [-1]), rows)

    def _flattened(self, value: ir.Value) -> ir.Value:
        """The first two axes as a single axis: of a grid, or of an original value, before the loop."""
        inside = value in self.tokens.roles
        nodes = self.nodes if inside else self.views
        if value not in self._flat:
            source, size = (self.grid(value), self._size) if inside else (value, self._fixed)
            self._flat[value] = nodes.reshape(source, [-1, *map(size, self.shapes.dims(value)[2:])])
        return self._flat[value]

    def _unpack(self, value: ir.Value) -> ir.Value:
        """A hidden token gets what the roles say of it, and else a copy of a kept token of its text."""
        packed, nodes, roles = self._packed[value], self.nodes, self.tokens.role(value)
        rest = [self._size(dim) for dim in self.shapes.dims(value)[2:]]
        grid = nodes.gather(nodes.reshape(packed, [-1, *rest]), self.part.grid)
        if not self.hides(value):
            return grid
        dtype = value.dtype or ir.DataType.FLOAT
        lowest = np.finfo(dtype.numpy()).min if roles.at(1).sunk else roles.at(1).true
        hidden = self.outer.constants.add(np.array(lowest).astype(dtype.numpy()), "packed_hidden", dtype)
        seen = nodes.reshape(self.part.seen, [self.part.count, self.part.length, *[1] * len(rest)])
        return nodes.add("Where", [seen, grid, hidden], value.dtype)

    def hides(self, value: ir.Value) -> bool:
        """Whether a reader relies on what the value has at hidden tokens."""
        facts = self.tokens.role(value).at(1)
        return facts.zero or facts.true or facts.sunk > 0

    def _size(self, dim: Dim) -> int | ir.Value:
        """In the part."""
        if isinstance(dim, int):
            return dim
        if same(dim, self.tokens.entries.batch):
            return self.part.count
        if same(dim, self.tokens.entries.length):
            return self.part.length
        if behind := self.tokens.entries.behind(dim):
            return self.nodes.add("Add", [self.part.length, self.nodes.integers([behind])])
        if (each := self.tokens.entries.texts_in(dim)) is not None:
            return self.nodes.add("Mul", [self.part.count, self.nodes.integers([each])])
        return self._fixed(dim)

    def _of_texts(self, value: ir.Value, rank: int, batch: int) -> ir.Value:
        """Of an original value: the part's texts and, of each, its tokens."""
        roles, dims = self.tokens.role(value), [*self.shapes.dims(value)]
        if not roles.axes():
            return value
        apart = rank - len(dims)
        dims = [*([1] * apart), *dims]
        at = batch if roles.batch is None else roles.batch + apart
        if len(roles.tokens) > 2:
            raise Refused(value.name or "", "operand", "expected at most two axes of tokens")
        if roles.batch is None and not same(dims[at], 1):
            raise Refused(value.name or "", "operand", "expected an axis of texts, or one of size 1")
        front = [at, *(axis + apart for axis in roles.tokens)]
        rest = [axis for axis in range(rank) if axis not in front]
        order = [*front, *rest]
        sizes: list[int | ir.Value] = [-1, *(self._fixed(dims[axis]) for axis in rest)]
        if (long := [axis for axis in order if not same(dims[axis], 1)]) == sorted(long):
            flat = self.views.reshape(value, sizes)
        else:
            wide = self.outer.unsqueeze(value, [*range(apart)]) if apart else value
            flat = self.outer.reshape(self.outer.transpose(wide, order), sizes)
            flat.shape = ir.Shape([None, *(size if isinstance(size, int) else None for size in sizes[1:])])
        chosen = self.nodes.gather(flat, self._numbers(len(roles.tokens), roles.batch is not None))
        return self.nodes.transpose(chosen, [order.index(axis) for axis in range(rank)])

    def _fixed(self, dim: Dim) -> int | ir.Value:
        """Of an axis of neither texts nor tokens: features, or another input's."""
        return dim if isinstance(dim, int) else self._sizes.vector([dim])

    def _numbers(self, tokens: int, own: bool) -> ir.Value:
        """(n, s, ...) with `tokens` axes of tokens: places among those of all texts if each has its own."""
        nodes, part = self.nodes, self.part
        if not tokens:
            return part.texts if own else nodes.integers([0])
        if tokens == 1:
            return part.flat if own else part.places
        rows = nodes.add("Mul", [part.flat if own else part.places, self.texts.length])
        return nodes.add("Add", [nodes.unsqueeze(rows, [2]), nodes.unsqueeze(part.places, [1])])

    def _pick(self, node: ir.Node) -> None:
        """The original's Gather of a single number has no axis for it."""
        pick, output = self.tokens.rows[node], node.outputs[0]
        ranks = self.nodes.gather(self.texts.picked[pick.rows], self.part.texts)  # (n, picks)
        single = self.shapes.rank(output) < self.shapes.rank(pick.value)
        made = (self._of_rows if self.tokens.leads(pick.value) else self._of_grid)(pick, ranks, single)
        self._grids[output, self.shapes.rank(output), 0] = made

    def _of_rows(self, pick: PickedTokens, ranks: ir.Value, single: bool) -> ir.Value:
        nodes, rest = self.nodes, [self._size(dim) for dim in self.shapes.dims(pick.value)[2:]]
        rows = nodes.add("Add", [ranks, self.part.starts])
        picked = nodes.gather(nodes.reshape(self.packed(pick.value), [-1, *rest]), rows)
        return nodes.reshape(picked, [-1, *rest]) if single else picked

    def _of_grid(self, pick: PickedTokens, ranks: ir.Value, single: bool) -> ir.Value:
        if self._opset < OLDEST_OPSET:
            raise Refused(pick.value.name or "", "opset", f"expected at least {OLDEST_OPSET} to pick a token's scores")
        nodes, batch = self.nodes, self.tokens.role(pick.value).batch or 0
        front = [batch, pick.axis]
        rest = [axis for axis in range(self.shapes.rank(pick.value)) if axis not in front]
        turned = nodes.transpose(self.grid(pick.value), [*front, *rest])
        texts = self.shapes.dims(pick.value)[batch]
        heads = self.tokens.entries.texts_in(texts) or 1
        if heads > 1 and isinstance(pick.rows, tuple):
            ranks = self._for_heads(ranks, 0, heads, [self._size(texts), len(pick.rows)])
        places = nodes.reshape(ranks, [-1, 1]) if single else nodes.unsqueeze(ranks, [2])
        picked = nodes.add("GatherND", [turned, places], pick.value.dtype, {"batch_dims": 1})
        order = [batch, *([] if single else [pick.axis]), *rest]
        return nodes.transpose(picked, [order.index(axis) for axis in sorted(order)])

    def _for_heads(self, value: ir.Value, axis: int, heads: int, sizes: Sequence[int | ir.Value]) -> ir.Value:
        """Of these sizes: what stands for each text along the axis, for each of its heads, which stand together."""
        shape = [1] * (len(sizes) + 1)
        shape[axis + 1] = heads
        wide = self.nodes.unsqueeze(value, [axis + 1])
        each = self.nodes.add("Expand", [wide, self.nodes.integers(shape)], value.dtype)
        return self.nodes.add("Reshape", [each, self.nodes.vector(sizes)], value.dtype, self._zero)

    def _copy(self, node: ir.Node, packed: bool) -> None:
        inputs = [self._input(node, k, value, packed) for k, value in enumerate(node.inputs)]
        if node.op_type in RESIZING and not node.domain:
            operator, kept = ("Expand", 1) if node.op_type == "Expand" else ("Reshape", -1)
            shape = self._shape(node.outputs[0], packed, kept)
            zero = self._zero if operator == "Reshape" and not packed else {}
            outputs = [self.nodes.add(operator, [inputs[0], shape], node.outputs[0].dtype, zero)]
        elif node.op_type == "Tile" and not node.domain:
            outputs = [self.nodes.add("Tile", [inputs[0], self._repeats(node, packed)], node.outputs[0].dtype)]
        else:
            outputs = [*self.nodes.copy(node, inputs, "packed").outputs]
        for old, made in zip(node.outputs, outputs, strict=True):
            if packed:
                self._packed[old] = made
            else:
                self._grids[old, self.shapes.rank(old) if old.shape is not None else 0, 0] = made

    def _input(self, node: ir.Node, position: int, value: ir.Value | None, packed: bool) -> ir.Value | None:
        if value is None or is_constant(value) or is_shape_input(node, position):
            return value
        if not self.tokens.role(value).axes():
            return self._weight(value)
        if packed:
            return self.packed(value)
        output = node.outputs[0]
        if node.op_type in TAIL_ALIGNED and value not in self.tokens.roles:
            return self._aligned(value, output)
        return self.grid(value)

    def _aligned(self, value: ir.Value, output: ir.Value) -> ir.Value:
        """Of an original value: of the output's rank, and for each head of a text where the output has these."""
        dims, batch = self.shapes.dims(output), self.tokens.roles[output].batch or 0
        grid, roles = self.grid(value, len(dims), batch), self.tokens.role(value)
        heads = self.tokens.entries.texts_in(dims[batch]) or 1
        if heads == 1 or not roles.tokens or roles.batch is not None:
            return grid
        sizes = [*map(self._size, [1] * (len(dims) - self.shapes.rank(value)) + [*self.shapes.dims(value)])]
        sizes[batch] = self._size(dims[batch])
        return self._for_heads(grid, batch, heads, sizes)

    def _repeats(self, node: ir.Node, packed: bool) -> ir.Value:
        """How often a Tile repeats each axis of what the part has of its input."""
        output, source = node.outputs[0], given(node, 0)
        repeats: list[int | ir.Value] = []
        for axis, (before, after) in enumerate(zip(self.shapes.dims(source), self.shapes.dims(output), strict=True)):
            if same(before, after) or (packed and axis < 2):
                repeats.append(1)
            elif isinstance(before, int) and isinstance(after, int):
                repeats.append(after // before)
            elif axis == self.tokens.roles[output].batch:
                texts = self._size(after) if before == 1 else self.part.count
                repeats.append(1 if self.tokens.role(source).tokens else texts)  # `_aligned` repeats tokens
            else:
                raise Refused.at(node, "expected to repeat texts, or known sizes")
        return self.nodes.vector(repeats)

    def _weight(self, value: ir.Value) -> ir.Value:
        """Of integers: become floats beside the product, where ONNX Runtime joins both to a product of integers."""
        maker = value.producer()
        if maker is None or maker.op_type != "DequantizeLinear" or not all(map(is_constant, maker.inputs)):
            return value
        if value not in self._weights:
            self._weights[value] = self.nodes.copy(maker, maker.inputs, "packed").outputs[0]
        return self._weights[value]

    def _shape(self, output: ir.Value, packed: bool, kept: int) -> ir.Value:
        """`kept`: the size by which the operator keeps the number of packed tokens."""
        dims: Sequence[Dim] = self.shapes.dims(output)
        if packed:
            return self.nodes.vector([1, kept, *map(self._size, dims[2:])])
        return self.nodes.vector([self._size(dim) for dim in dims])
