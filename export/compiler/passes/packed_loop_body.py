"""Builds the loop body of a packed graph: the network for a part of the texts.

In: `Tokens`, and the indices of a part (see `packed_indices`). Out: the part's values in two forms:

    packed    (1, t, ...): the kept tokens of all texts, as if they were a single text
    grid      (n, s, ...) or with other axes, as in the original: n texts of s tokens, with padding

An operator f on single tokens runs on packed rows; an operator that joins a text's tokens, as attention, runs on the
grid:

    f(X)[kept] = f(X[kept])        unpack(packed)[text, token] = packed[packed_rows[text, token]]

Refuses, by the name of the node or value in the way: more than two axes of tokens; an axis for texts that is neither
theirs nor of size 1; a Tile of unknown sizes; before opset 12 a pick from scores of a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.token_axes import Tokens, is_shape_input
from export.compiler.analyses.token_mixing import PickedTokens
from export.compiler.errors import Refused
from export.compiler.graph.attributes import given
from export.compiler.graph.constants import is_constant
from export.compiler.graph.node_builder import Nodes
from export.compiler.graph.runtime_sizes import Sizes
from export.compiler.graph.symbolic_shapes import Dim, same
from export.compiler.operators.table import BROADCASTING, REPEATING, RESIZING, Trait, operator_of
from export.compiler.passes.packed_indices import Part, Texts

OLDEST_OPSET = 12  # batch_dims of GatherND
ALLOWS_ZERO = 14  # opset; before, a size of 0 in a Reshape copies the size of another axis
NARROW = {ir.DataType.INT8, ir.DataType.UINT8}
TAIL_ALIGNED = BROADCASTING | REPEATING | {"MatMul"}  # operators that align the last axes of their inputs


class Body:
    """Call `run` once; then `packed` and `grid` return the part's values.

    `nodes` adds nodes in the loop, `outer` before it, and `views` reshapes before it, which copy nothing.
    """

    def __init__(self, tokens: Tokens, texts: Texts, part: Part, nodes: Nodes, views: Nodes) -> None:
        self.tokens, self.shapes = tokens, tokens.shapes
        self.texts, self.part, self.nodes, self.outer, self.views = texts, part, nodes, texts.nodes, views
        self._grids: dict[tuple[ir.Value, int, int], ir.Value] = {}
        self._packed: dict[ir.Value, ir.Value] = {}
        self._flat: dict[ir.Value, ir.Value] = {}
        self._weights: dict[ir.Value, ir.Value] = {}
        self._sizes = Sizes(self.shapes, views)
        self._zero = {"allowzero": 1} if nodes.opset >= ALLOWS_ZERO else {}

    def run(self) -> None:
        """Computes the network's nodes, in their order."""
        for node in self.tokens.inside:
            if node in self.tokens.rows:
                self._pick(node)
            else:
                self._copy(node, packed=self._is_packed(node))

    def packed(self, value: ir.Value) -> ir.Value:
        """The kept tokens of a value: (1, t, ...), or (t, ...) where the tokens are its first axis."""
        if value not in self._packed:
            self._packed[value] = self._pack(value)
        return self._packed[value]

    def grid(self, value: ir.Value, rank: int | None = None, batch: int = 0) -> ir.Value:
        """The value for the part's texts, with the axes of the original.

        An original without texts gets this rank, with the texts at the axis `batch`.
        """
        rank = rank or self.shapes.rank(value)
        if (value, rank, batch) not in self._grids:
            if value in self.tokens.roles:
                self._grids[value, rank, batch] = self._unpack(value)
            else:
                self._grids[value, rank, batch] = self._select_texts(value, rank, batch)
        return self._grids[value, rank, batch]

    def _is_packed(self, node: ir.Node) -> bool:
        """Whether a node runs on packed rows: it joins no tokens, and all its inputs and outputs can be packed.

        An operator with the trait BOUND does not: a table of positions may be shorter than the packed rows.
        """
        if node in self.tokens.joining or Trait.BOUND in operator_of(node).traits:
            return False
        for output in node.outputs:
            if output in self.tokens.roles and not self.tokens.leads(output):
                return False
            if output.dtype in NARROW and self.hides(output):  # quantised: hidden tokens would need the zero point
                return False
        rank = self.shapes.rank(node.outputs[0])
        return all(
            value is None or is_constant(value) or is_shape_input(node, k) or self._can_pack(value, rank)
            for k, value in enumerate(node.inputs)
        )

    def _can_pack(self, value: ir.Value, rank: int) -> bool:
        """Whether an input of a node of this rank can be packed so that its rows meet those of the other inputs."""
        roles, dims = self.tokens.role(value), self.shapes.dims(value)
        if roles.batch is not None and roles.tokens:
            return self.tokens.leads(value)
        if value in self.tokens.roles or not roles.axes():
            return not roles.axes()
        if roles.batch is not None:
            return roles.batch == 0 and len(dims) == rank and same(dims[1], 1)
        token_axis = len(dims) - rank + 1  # the axis that meets the tokens
        return roles.tokens == (token_axis,) and all(same(dim, 1) for dim in dims[:token_axis])

    def _pack(self, value: ir.Value) -> ir.Value:
        """As `packed`, of a value on the grid or of an original value."""
        part, nodes, roles = self.part, self.nodes, self.tokens.role(value)
        if value in self.tokens.roles:
            return nodes.gather(self._flattened(value), part.grid_indices)
        if roles.axes() == (0, 1):
            return nodes.gather(self._flattened(value), self.at_rows(part.flat_indices))
        if roles.batch is None:
            return nodes.gather(value, self.at_rows(part.token_indices, vector=True), roles.tokens[0])
        grid_shape = nodes.vector([part.count, part.length])
        texts = nodes.add("Expand", [nodes.unsqueeze(part.texts, [1]), grid_shape])
        return nodes.gather(self._flattened(value), self.at_rows(texts))

    def at_rows(self, indices: ir.Value, vector: bool = False) -> ir.Value:
        """Of indices (n, s) those of the packed rows: (1, t), or (t) as a vector."""
        rows = self.nodes.reshape(self.part.grid_indices, [-1]) if vector else self.part.grid_indices
        return self.nodes.gather(self.nodes.reshape(indices, [-1]), rows)

    def _flattened(self, value: ir.Value) -> ir.Value:
        """The value with its first two axes, texts and tokens, as a single axis; of an original before the loop."""
        is_computed = value in self.tokens.roles
        nodes = self.nodes if is_computed else self.views
        if value not in self._flat:
            source, size = (self.grid(value), self._size) if is_computed else (value, self._size_outside)
            self._flat[value] = nodes.reshape(source, [-1, *map(size, self.shapes.dims(value)[2:])])
        return self._flat[value]

    def _unpack(self, value: ir.Value) -> ir.Value:
        """The grid of a packed value.

        Padding is a copy of the text's last kept token, unless a reader relies on 0, true or a low score there.
        """
        packed, nodes, roles = self._packed[value], self.nodes, self.tokens.role(value)
        features = [self._size(dim) for dim in self.shapes.dims(value)[2:]]
        grid = nodes.gather(nodes.reshape(packed, [-1, *features]), self.part.packed_rows)
        if not self.hides(value):
            return grid
        dtype = value.dtype or ir.DataType.FLOAT
        fill = np.finfo(dtype.numpy()).min if roles.at(1).sunk else roles.at(1).true
        hidden = self.outer.constants.add(np.array(fill).astype(dtype.numpy()), "packed_hidden", dtype)
        is_kept = nodes.reshape(self.part.is_kept, [self.part.count, self.part.length, *[1] * len(features)])
        return nodes.add("Where", [is_kept, grid, hidden])

    def hides(self, value: ir.Value) -> bool:
        """Whether a reader relies on what the value is at hidden tokens: 0, true, or far below the other scores."""
        facts = self.tokens.role(value).at(1)
        return facts.zero or facts.true or facts.sunk > 0

    def _size(self, dim: Dim) -> int | ir.Value:
        """A size of the original as it is in the part."""
        if isinstance(dim, int):
            return dim
        if same(dim, self.tokens.entries.batch):
            return self.part.count
        if same(dim, self.tokens.entries.length):
            return self.part.length
        if behind := self.tokens.entries.behind(dim):
            return self.nodes.add("Add", [self.part.length, self.nodes.integers([behind])])
        if (per_text := self.tokens.entries.texts_in(dim)) is not None:
            return self.nodes.add("Mul", [self.part.count, self.nodes.integers([per_text])])
        return self._size_outside(dim)

    def _select_texts(self, value: ir.Value, rank: int, batch: int) -> ir.Value:
        """As `grid`, of an original value: the part's texts, and of every text its tokens."""
        roles, dims = self.tokens.role(value), [*self.shapes.dims(value)]
        if not roles.axes():
            return value
        new_axes = rank - len(dims)
        dims = [*([1] * new_axes), *dims]
        text_axis = batch if roles.batch is None else roles.batch + new_axes
        if len(roles.tokens) > 2:
            raise Refused(value.name or "", "operand", "expected at most two axes of tokens")
        if roles.batch is None and not same(dims[text_axis], 1):
            raise Refused(value.name or "", "operand", "expected an axis of texts, or one of size 1")
        front = [text_axis, *(axis + new_axes for axis in roles.tokens)]
        features = [axis for axis in range(rank) if axis not in front]
        order = [*front, *features]
        sizes: list[int | ir.Value] = [-1, *(self._size_outside(dims[axis]) for axis in features)]
        if (long_axes := [axis for axis in order if not same(dims[axis], 1)]) == sorted(long_axes):
            flat = self.views.reshape(value, sizes)
        else:
            aligned = self.outer.unsqueeze(value, range(new_axes))
            flat = self.outer.reshape(self.outer.transpose(aligned, order), sizes)
            flat.shape = ir.Shape([None, *(size if isinstance(size, int) else None for size in sizes[1:])])
        selected = self.nodes.gather(flat, self._grid_indices(len(roles.tokens), roles.batch is not None))
        return self.nodes.transpose_back(selected, order)

    def _size_outside(self, dim: Dim) -> int | ir.Value:
        """A size that is the same outside the loop: of an axis of features, or of another input's axis."""
        return dim if isinstance(dim, int) else self._sizes.vector([dim])

    def _grid_indices(self, token_axes: int, has_texts: bool) -> ir.Value:
        """The indices of the part in the flattened axes of texts and tokens: (n), (n, s) or (n, s, s).

        `token_axes`: the number of axes of tokens. `has_texts`: whether there is an axis of texts.
        """
        nodes, part = self.nodes, self.part
        if not token_axes:
            return part.texts if has_texts else nodes.integers([0])
        rows = part.flat_indices if has_texts else part.token_indices
        if token_axes == 1:
            return rows
        row_starts = nodes.add("Mul", [rows, self.texts.length])
        return nodes.add("Add", [nodes.unsqueeze(row_starts, [2]), nodes.unsqueeze(part.token_indices, [1])])

    def _pick(self, node: ir.Node) -> None:
        """Computes a node that picks tokens. A Gather of a single index drops the axis of the tokens: `single`."""
        pick, output = self.tokens.rows[node], node.outputs[0]
        ranks = self.nodes.gather(self.texts.picked_ranks[pick.rows], self.part.texts)  # (n, picks)
        single = self.shapes.rank(output) < self.shapes.rank(pick.value)
        pick_tokens = self._pick_from_rows if self.tokens.leads(pick.value) else self._pick_from_grid
        self._grids[output, self.shapes.rank(output), 0] = pick_tokens(pick, ranks, single)

    def _pick_from_rows(self, pick: PickedTokens, ranks: ir.Value, single: bool) -> ir.Value:
        nodes, features = self.nodes, [self._size(dim) for dim in self.shapes.dims(pick.value)[2:]]
        rows = nodes.add("Add", [ranks, self.part.first_rows])
        picked = nodes.gather(nodes.reshape(self.packed(pick.value), [-1, *features]), rows)
        return nodes.reshape(picked, [-1, *features]) if single else picked

    def _pick_from_grid(self, pick: PickedTokens, ranks: ir.Value, single: bool) -> ir.Value:
        """By GatherND of (texts, tokens, ...)."""
        if self.nodes.opset < OLDEST_OPSET:
            raise Refused(pick.value.name or "", "opset", f"expected at least {OLDEST_OPSET} to pick a token's scores")
        nodes, batch = self.nodes, self.tokens.role(pick.value).batch or 0
        front = [batch, pick.axis]
        features = [axis for axis in range(self.shapes.rank(pick.value)) if axis not in front]
        tokens_first = nodes.transpose(self.grid(pick.value), [*front, *features])
        texts = self.shapes.dims(pick.value)[batch]
        heads = self.tokens.entries.texts_in(texts) or 1
        if heads > 1 and isinstance(pick.rows, tuple):
            ranks = self._for_heads(ranks, 0, heads, [self._size(texts), len(pick.rows)])
        indices = nodes.reshape(ranks, [-1, 1]) if single else nodes.unsqueeze(ranks, [2])
        picked = nodes.add("GatherND", [tokens_first, indices], batch_dims=1)
        order = [batch, *([] if single else [pick.axis]), *features]
        return nodes.transpose_back(picked, order)

    def _for_heads(self, value: ir.Value, axis: int, heads: int, sizes: Sequence[int | ir.Value]) -> ir.Value:
        """Repeats a text's row along the axis for each of its heads, which are adjacent; a value of these sizes."""
        shape = [1] * (len(sizes) + 1)
        shape[axis + 1] = heads
        with_heads = self.nodes.unsqueeze(value, [axis + 1])
        repeated = self.nodes.add("Expand", [with_heads, self.nodes.integers(shape)])
        return self.nodes.add("Reshape", [repeated, self.nodes.vector(sizes)], **self._zero)

    def _copy(self, node: ir.Node, packed: bool) -> None:
        """Computes a node by a copy, with shapes that fit the part."""
        inputs = [self._input(node, k, value, packed) for k, value in enumerate(node.inputs)]
        if node.op_type in RESIZING and not node.domain:
            operator, keep_size = ("Expand", 1) if node.op_type == "Expand" else ("Reshape", -1)
            shape = self._shape(node.outputs[0], packed, keep_size)
            zero = self._zero if operator == "Reshape" and not packed else {}
            outputs = [self.nodes.add(operator, [inputs[0], shape], **zero)]
        elif node.op_type == "Tile" and not node.domain:
            outputs = [self.nodes.add("Tile", [inputs[0], self._repeats(node, packed)])]
        else:
            outputs = [*self.nodes.copy(node, inputs, "packed").outputs]
        for old, new in zip(node.outputs, outputs, strict=True):
            if packed:
                self._packed[old] = new
            else:
                self._grids[old, self.shapes.rank(old) if old.shape is not None else 0, 0] = new

    def _input(self, node: ir.Node, position: int, value: ir.Value | None, packed: bool) -> ir.Value | None:
        """What the copy of a node reads instead of an input of the original."""
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
        """The grid of an original value with the output's rank, repeated for heads that the output joins with texts."""
        dims, batch = self.shapes.dims(output), self.tokens.roles[output].batch or 0
        grid, roles = self.grid(value, len(dims), batch), self.tokens.role(value)
        heads = self.tokens.entries.texts_in(dims[batch]) or 1
        if heads == 1 or not roles.tokens or roles.batch is not None:
            return grid
        sizes = [*map(self._size, [1] * (len(dims) - self.shapes.rank(value)) + [*self.shapes.dims(value)])]
        sizes[batch] = self._size(dims[batch])
        return self._for_heads(grid, batch, heads, sizes)

    def _repeats(self, node: ir.Node, packed: bool) -> ir.Value:
        """How often a Tile repeats each axis of its input in the part. Raises Refused for unknown sizes."""
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
        """A weight, dequantised in the loop: there ONNX Runtime fuses that with the product, to one of integers."""
        producer = value.producer()
        if producer is None or producer.op_type != "DequantizeLinear" or not all(map(is_constant, producer.inputs)):
            return value
        if value not in self._weights:
            self._weights[value] = self.nodes.copy(producer, producer.inputs, "packed").outputs[0]
        return self._weights[value]

    def _shape(self, output: ir.Value, packed: bool, keep_size: int) -> ir.Value:
        """The shape for a Reshape or Expand. `keep_size`: the number by which it keeps the number of packed tokens."""
        dims: Sequence[Dim] = self.shapes.dims(output)
        if packed:
            return self.nodes.vector([1, keep_size, *map(self._size, dims[2:])])
        return self.nodes.vector([self._size(dim) for dim in dims])
