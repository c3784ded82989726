"""Finds what masks hold at hidden tokens, by evaluating the nodes that compute them.

A value that depends on no weights, only on the mask, ids and sizes, is cheap to evaluate: for example the 0 and -1e9
that are added to attention scores. In: a prepared graph, its input `mask`, and inputs with masks of every kind. Out:
`Roles` of such values: their axes of texts and tokens, and what holds at hidden tokens for all of these inputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.compiler.analyses.demand import sizes_read
from export.compiler.errors import Refused
from export.compiler.graph.constants import Array, is_constant
from export.compiler.graph.symbolic_shapes import Dim, Shapes, agree, bound_sizes, more, same, times
from export.compiler.operators.evaluate import UnknownOperator, evaluate_node

SUNK = 1000.0  # a score is sunk if it lies this far below a visible score: exp(-1000) is 0 in float64

Mask = NDArray[np.bool_]  # (texts, tokens)
Values = dict[ir.Value, Array]


class Facts(NamedTuple):
    """What holds for the entries of hidden tokens along an axis.

    - `zero`, `true`: all are 0, or all are true.
    - `sunk`: how far all lie below the largest visible entry, if that is at least SUNK, so that a softmax gives them 0;
      else 0.
    - `low`, `high`: some may be -SUNK or less, SUNK or more, as numbers that fill hidden places are.
    """

    zero: bool = False
    true: bool = False
    sunk: float = 0.0
    low: bool = False
    high: bool = False


NO_FACTS = Facts()


@dataclass(frozen=True)
class Roles:
    """Which axes of a value are texts and tokens. `batch`: the axis of the texts; `facts`: axis of tokens -> its facts.

    A value may have two axes of tokens, as scores have. The facts of an axis hold where the other token is visible.
    """

    batch: int | None = None
    facts: Mapping[int, Facts] = field(default_factory=dict)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The axes of tokens."""
        return tuple(self.facts)

    def axes(self) -> tuple[int, ...]:
        """The axis of texts, if there is one, then the axes of tokens."""
        return (*(() if self.batch is None else (self.batch,)), *self.tokens)

    def at(self, axis: int) -> Facts:
        """The facts of an axis of tokens; NO_FACTS for any other axis."""
        return self.facts.get(axis, NO_FACTS)


class MaskedEntries:
    """Finds the roles of the values that depend only on mask, ids and sizes: it evaluates them on drawn inputs.

    Some texts do not count, because a packed graph computes them whole: texts of which the mask hides a token that the
    graph picks, and texts without visible tokens. `picks`: pairs of a value and the indices (texts, ...) of what the
    graph picks along its second axis; those of no tokens are ignored. `places`: constant indices of picked tokens,
    which the analysis may add later: a fact that holds for all texts also holds for fewer. `trailing`: texts do not
    count, either, if the mask hides a token before a visible token.
    """

    def __init__(
        self,
        shapes: Shapes,
        mask: ir.Value,
        picks: Sequence[tuple[ir.Value | None, ir.Value | None]],
        drawn: Sequence[Mapping[str, Array]],
        trailing: bool = False,
    ) -> None:
        """Raises Refused if the mask has other axes than free ones of texts and tokens."""
        self.shapes, self.mask, self.trailing = shapes, mask, trailing
        self.places: list[tuple[int, ...]] = []
        self.batch, self.length = self._sizes()
        of_tokens = (chosen for whole, chosen in picks if whole and chosen and self._is_pick(whole, chosen))
        self.picks = [*dict.fromkeys(of_tokens)]
        self._draws: list[Values] = [
            {value: feeds[value.name or ""] for value in shapes.graph.inputs} for feeds in drawn
        ]
        self._roles: dict[ir.Value, Roles] = {}

    def _sizes(self) -> tuple[Dim, Dim]:
        dims = self.shapes.dims(self.mask)
        if len(dims) != 2 or any(isinstance(dim, int) for dim in dims) or same(*dims):
            found = f"({', '.join(map(str, dims))})"
            raise Refused(self.mask.name or "", "graph input", f"expected free axes of texts and tokens, found {found}")
        return dims[0], dims[1]

    def _is_pick(self, whole: ir.Value, chosen: ir.Value) -> bool:
        """Whether the indices `chosen`, of every text, are of tokens along the second axis of `whole`."""
        rows = self.shapes.dims(whole)[1:2] if whole.shape is not None else ()
        texts = self.shapes.dims(chosen)[:1]
        return any(agree(self.length, dim) for dim in rows) and any(same(dim, self.batch) for dim in texts)

    def roles(self, value: ir.Value) -> Roles:
        """The roles of a value whose nodes stay as they are. Raises Refused for an axis of unknown size."""
        if value not in self._roles:
            self._roles[value] = self._evaluated_roles(value)
        return self._roles[value]

    def _evaluated_roles(self, value: ir.Value) -> Roles:
        if is_constant(value):
            return Roles()
        dims = self.shapes.dims(value)
        for dim in dims:
            self.check(value, dim)
            if self.texts_in(dim) not in (None, 1):
                raise Refused.of(value, f"an axis of {dim} mixes texts")
        batch = [axis for axis, dim in enumerate(dims) if same(dim, self.batch)]
        tokens = tuple(axis for axis, dim in enumerate(dims) if agree(self.length, dim))
        if len(batch) > 1:
            raise Refused(value.name or "", "two axes", "expected one axis of texts")
        if not batch or not tokens:
            return Roles(batch[0] if batch else None, dict.fromkeys(tokens, NO_FACTS))
        return Roles(batch[0], {axis: self._facts(value, batch[0], tokens, axis) for axis in tokens})

    def check(self, value: ir.Value, dim: Dim) -> None:
        """Raises Refused if the size of an axis does not tell whether the axis is texts, tokens or neither."""
        if not self.shapes.is_known(dim) and self.is_of_text(dim):
            size = dim if self.shapes.is_sized(value) else "unknown size"
            raise Refused.of(value, f"an axis of {size} tells no texts from tokens")

    def is_of_text(self, dim: Dim) -> bool:
        """Whether an axis is neither texts nor tokens, such as a decoder's rows: every text then has all of it."""
        return not agree(self.length, dim) and self.texts_in(dim) is None

    def behind(self, dim: Dim) -> int:
        """How many further entries follow the tokens along an axis, such as an attention sink; 0 for other axes."""
        return more(dim, self.length)

    def texts_in(self, dim: Dim) -> int | None:
        """How many elements a text has along an axis: 1, or the heads for texts times heads; None: not of texts."""
        return times(dim, self.batch)

    def _facts(self, value: ir.Value, batch: int, tokens: tuple[int, ...], axis: int) -> Facts:
        """The facts of `axis`, of the axes `tokens`, over all drawn inputs; NO_FACTS if an operator has no kernel."""
        drawn: list[Facts] = []
        for visible, (array, *picked) in self._evaluated([value, *self.picks]):
            counted = visible.any(1, keepdims=True)  # (texts, 1)
            if self.trailing:
                counted &= (visible[:, 1:] <= visible[:, :-1]).all(1, keepdims=True)
            for numbers in picked:
                counted &= _shows(visible, numbers.reshape(len(visible), -1).astype(np.int64))
            for places in self.places:
                counted &= _shows(visible, np.tile(np.array(places, np.int64), (len(visible), 1)))
            hidden = _as_operand(~visible & counted, array, batch, axis)
            for other in tokens:
                if other != axis:
                    hidden = hidden & _as_operand(visible, array, batch, other)
            hidden = np.broadcast_to(hidden, array.shape)
            kind, entries = array.dtype.kind, array[hidden]
            facts = Facts(
                not entries.any(),
                kind == "b" and bool(entries.all()),
                _depth(array, hidden, _as_operand(visible, array, batch, axis), axis) if kind == "f" else 0.0,
                kind == "f" and bool((entries <= -SUNK).any()),
                kind == "f" and bool((entries >= SUNK).any()),
            )
            drawn.append(facts)
        if not drawn:
            return NO_FACTS
        zero, true, sunk, low, high = zip(*drawn, strict=True)
        return Facts(all(zero), all(true), min(sunk), any(low), any(high))

    def _evaluated(self, wanted: Sequence[ir.Value]) -> Iterator[tuple[Mask, list[Array]]]:
        """The mask (texts, tokens) and the `wanted` values, of every drawn input; none if an operator has no kernel."""
        for values in self._draws:
            try:
                self._evaluate(wanted, values)
            except UnknownOperator:
                return
            yield values[self.mask].astype(bool), [values[value] for value in wanted]

    def _evaluate(self, wanted: Sequence[ir.Value], values: Values) -> None:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)  # log(0) of hidden entries
            for node in (node for value in wanted for node in producers(value)):
                if all(output in values for output in node.outputs if output.name):
                    continue
                values.update(self._size(node, values) if _reads_size(node) else evaluate_node(node, values))

    def _size(self, node: ir.Node, values: Values) -> Values:
        """The output of a Shape, from the inputs' sizes alone: its value may need the whole network."""
        graph = self.shapes.graph
        sized = Shapes(graph, bound_sizes(graph, {value.name or "": values[value] for value in graph.inputs}))
        return {node.outputs[0]: np.array([*map(sized.nominal, sizes_read(self.shapes, node))])}


def _reads_size(node: ir.Node) -> bool:
    source = node.inputs[0] if node.inputs else None
    return node.op_type == "Shape" and not node.domain and source is not None and source.shape is not None


def producers(value: ir.Value) -> list[ir.Node]:
    """All nodes that a value depends on, in topological order; behind a Shape only the Shape itself."""
    order: dict[ir.Node, None] = {}
    stack = [(value.producer(), False)]
    while stack:
        node, inputs_done = stack.pop()
        if node is None or node in order:
            continue
        if inputs_done:
            order[node] = None
            continue
        sources = [] if _reads_size(node) else [source for source in node.inputs if source is not None]
        stack += [(node, True), *((source.producer(), False) for source in sources)]
    return [*order]


def _shows(visible: Mask, places: NDArray[np.int64]) -> Mask:
    """Whether the mask shows all tokens at the indices (texts, picks): bool (texts, 1); no, if one is beyond a text."""
    length = visible.shape[1]
    inside = (places >= -length) & (places < length)
    shown: Mask = (np.take_along_axis(visible, np.where(inside, places, 0), 1) & inside).all(1, keepdims=True)
    return shown


def _as_operand(flags: NDArray[np.bool_], array: Array, batch: int, axis: int) -> NDArray[np.bool_]:
    """Flags (texts, tokens) in a shape that broadcasts to the array, whose axes `batch` and `axis` they belong to."""
    ordered = flags if batch < axis else flags.T
    return ordered.reshape([size if k in (batch, axis) else 1 for k, size in enumerate(array.shape)])


def _depth(array: Array, hidden: NDArray[np.bool_], visible: NDArray[np.bool_], axis: int) -> float:
    """How far all hidden entries lie below the largest visible entry along `axis`, as `Facts.sunk` has it."""
    array = array.astype(np.float64)
    most = np.broadcast_to(np.where(visible, array, -np.inf).max(axis, keepdims=True), array.shape)[hidden]
    return sunk_by((most - array[hidden]).min(initial=np.inf)) if np.isfinite(most).all() else 0.0


def sunk_by(depth: float) -> float:
    """The depth if a softmax gives 0 to entries so far below the largest; else 0."""
    return float(depth) if depth >= SUNK else 0.0
