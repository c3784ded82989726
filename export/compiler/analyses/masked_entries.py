"""What a value that follows from mask, ids and sizes alone has at the tokens that the mask hides.

In: a prepared graph, its mask and inputs with masks of every kind. Out: `Roles` of such values, found by evaluating
them on these inputs.
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
from export.compiler.graph.shapes import Dim, Shapes, agree, same
from export.compiler.operators.evaluate import UnknownOperator, evaluate_node

SUNK = 1000.0  # by which a hidden score lies below a visible one: exp(-1000) is 0 in float64

Mask = NDArray[np.bool_]  # (texts, tokens)
Values = dict[ir.Value, Array]


class Facts(NamedTuple):
    """Whether hidden entries are 0 or true. `sunk`: how far they lie below a visible one, if a softmax gives them 0,
    else 0. `low`, `high`: some may lie SUNK below or above 0, as what fills hidden tokens.
    """

    zero: bool = False
    true: bool = False
    sunk: float = 0.0
    low: bool = False
    high: bool = False


NO_FACTS = Facts()


@dataclass(frozen=True)
class Roles:
    """The axis of the texts, and of each axis of tokens the facts. Hidden tokens of another axis do not count."""

    batch: int | None = None
    facts: Mapping[int, Facts] = field(default_factory=dict)

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(self.facts)

    def axes(self) -> tuple[int, ...]:
        return (*(() if self.batch is None else (self.batch,)), *self.tokens)

    def at(self, axis: int) -> Facts:
        return self.facts.get(axis, NO_FACTS)


class HiddenEntries:
    """What a value's entries are at the tokens that the mask hides.

    A text is left out, and computed whole, if the mask hides a token of it that `picks` (texts, ...) or `places` name;
    picks of other first axes are of no texts. Places may be added later: what holds for all texts holds for fewer.
    `trailing`: so is a text with a hidden token before one that the mask shows.
    """

    def __init__(
        self,
        shapes: Shapes,
        mask: ir.Value,
        picks: Sequence[ir.Value],
        drawn: Sequence[Mapping[str, Array]],
        trailing: bool = False,
    ) -> None:
        """Raises Refused if the mask has other axes than free ones of texts and tokens."""
        self.shapes, self.mask, self.trailing = shapes, mask, trailing
        self.places: list[tuple[int, ...]] = []
        self.batch, self.length = self._sizes()
        self.picks = [value for value in picks if shapes.rank(value) and same(shapes.dims(value)[0], self.batch)]
        self._draws = [self._values(feeds) for feeds in drawn]
        self._known: dict[ir.Value, Roles] = {}

    def _sizes(self) -> tuple[Dim, Dim]:
        dims = self.shapes.dims(self.mask)
        if len(dims) != 2 or any(isinstance(dim, int) for dim in dims) or same(*dims):
            found = f"({', '.join(map(str, dims))})"
            raise Refused(self.mask.name or "", "graph input", f"expected free axes of texts and tokens, found {found}")
        return dims[0], dims[1]

    def roles(self, value: ir.Value) -> Roles:
        """Of a value that is computed as in the original. Raises Refused for an axis of unknown size."""
        if value not in self._known:
            self._known[value] = self._roles(value)
        return self._known[value]

    def _roles(self, value: ir.Value) -> Roles:
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
        """Raises Refused for a size that is neither known nor of an input's axis."""
        if not self.shapes.is_known(dim) and self.is_of_text(dim):
            size = dim if self.shapes.is_sized(value) else "unknown size"
            raise Refused.of(value, f"an axis of {size} tells no texts from tokens")

    def is_of_text(self, dim: Dim) -> bool:
        """Whether the axis is of neither texts nor tokens, such as a decoder's rows: then each text has all of it."""
        return not agree(self.length, dim) and self.texts_in(dim) is None

    def behind(self, dim: Dim) -> int:
        """How many other entries an axis has behind its tokens, such as a sink of scores."""
        return self.shapes.more(dim, self.length)

    def texts_in(self, dim: Dim) -> int | None:
        """How many elements each text has along an axis of texts, as of texts and heads; None of another axis."""
        return self.shapes.times(dim, self.batch)

    def _facts(self, value: ir.Value, batch: int, tokens: tuple[int, ...], axis: int) -> Facts:
        """Unknown if an operator has no kernel."""
        drawn: list[Facts] = []
        for seen, (array, *picked) in self._evaluated([value, *self.picks]):
            apart = seen.any(1, keepdims=True)
            if self.trailing:
                apart &= (seen[:, 1:] <= seen[:, :-1]).all(1, keepdims=True)
            for numbers in picked:
                apart &= np.take_along_axis(seen, numbers.reshape(len(seen), -1).astype(np.int64), 1).all(
                    1, keepdims=True
                )
            for places in self.places:
                apart &= _shows(seen, places)
            hidden = _along(~seen & apart, array, batch, axis)
            for other in tokens:
                if other != axis:
                    hidden = hidden & _along(seen, array, batch, other)
            hidden = np.broadcast_to(hidden, array.shape)
            kind, entries = array.dtype.kind, array[hidden]
            facts = Facts(
                not entries.any(),
                kind == "b" and bool(entries.all()),
                _depth(array, hidden, _along(seen, array, batch, axis), axis) if kind == "f" else 0.0,
                kind == "f" and bool((entries <= -SUNK).any()),
                kind == "f" and bool((entries >= SUNK).any()),
            )
            drawn.append(facts)
        if not drawn:
            return NO_FACTS
        zero, true, sunk, low, high = zip(*drawn, strict=True)
        return Facts(all(zero), all(true), min(sunk), any(low), any(high))

    def _evaluated(self, wanted: Sequence[ir.Value]) -> Iterator[tuple[Mask, list[Array]]]:
        """Nothing if an operator has no kernel."""
        for mask, values in self._draws:
            try:
                self._evaluate(wanted, values)
            except UnknownOperator:
                return
            yield mask, [values[value] for value in wanted]

    def _evaluate(self, wanted: Sequence[ir.Value], values: Values) -> None:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)  # log(0) of hidden entries
            for node in (node for value in wanted for node in makers(value)):
                if all(output in values for output in node.outputs if output.name):
                    continue
                values.update(self._size(node, values) if _reads_size(node) else evaluate_node(node, values))

    def _size(self, node: ir.Node, values: Values) -> Values:
        """Of a Shape, without its value: that of a token's features needs the whole network."""
        sizes = {
            str(dim.value): size
            for value in self.shapes.graph.inputs
            if value.shape is not None
            for dim, size in zip(value.shape.dims, values[value].shape, strict=True)
            if isinstance(dim, ir.SymbolicDim)
        }
        sized = Shapes(self.shapes.graph, sizes)
        return {node.outputs[0]: np.array([*map(sized.nominal, sizes_read(self.shapes, node))])}

    def _values(self, feeds: Mapping[str, Array]) -> tuple[Mask, Values]:
        values = {value: feeds[value.name or ""] for value in self.shapes.graph.inputs}
        return values[self.mask].astype(bool), values


def _reads_size(node: ir.Node) -> bool:
    source = node.inputs[0] if node.inputs else None
    return node.op_type == "Shape" and not node.domain and source is not None and source.shape is not None


def makers(value: ir.Value) -> list[ir.Node]:
    """The nodes that compute it, in order."""
    order: dict[ir.Node, None] = {}
    waiting = [(value.producer(), False)]
    while waiting:
        node, done = waiting.pop()
        if node is None or node in order:
            continue
        if done:
            order[node] = None
            continue
        read = [] if _reads_size(node) else [given for given in node.inputs if given is not None]
        waiting += [(node, True), *((given.producer(), False) for given in read)]
    return [*order]


def _shows(seen: Mask, places: Sequence[int]) -> Mask:
    """(texts, 1), whether the tokens of these numbers are seen; a text may be too short for them."""
    length = seen.shape[1]
    inside = [place for place in places if -length <= place < length]
    shown: Mask = seen[:, inside].all(1, keepdims=True) & (len(inside) == len(places))
    return shown


def _along(flags: NDArray[np.bool_], array: Array, batch: int, axis: int) -> NDArray[np.bool_]:
    """(texts, tokens) as an operand of the array."""
    turned = flags if batch < axis else flags.T
    shape = [array.shape[own] if own in (batch, axis) else 1 for own in range(array.ndim)]
    return turned.reshape(shape)


def _depth(array: Array, hidden: NDArray[np.bool_], seen: NDArray[np.bool_], axis: int) -> float:
    array = array.astype(np.float64)
    most = np.broadcast_to(np.where(seen, array, -np.inf).max(axis, keepdims=True), array.shape)[hidden]
    return sunk_by((most - array[hidden]).min(initial=np.inf)) if np.isfinite(most).all() else 0.0


def sunk_by(depth: float) -> float:
    """The depth, if a softmax gives such entries 0, else 0."""
    return float(depth) if depth >= SUNK else 0.0
