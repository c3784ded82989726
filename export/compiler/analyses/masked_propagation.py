"""Which outputs are 0, true, sunk, low or high at hidden tokens because inputs are.

In: a node, the roles of its inputs and, for an axis of its output, the axis of each input. Out: `Facts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from export.compiler.analyses.masked_entries import NO_FACTS, SUNK, Facts, Roles, sunk_by
from export.compiler.graph.constants import FLOATS, Array, constant
from export.compiler.graph.def_use import made_by, made_of
from export.compiler.operators.table import Trait, operator_of

COMPARING: Mapping[str, Callable[[Array, Array], Array]] = {
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
}


def facts_of(node: ir.Node, roles: Mapping[int, Roles], axes: Mapping[int, int]) -> Facts:
    """Of products the other factors, of sums the other terms are taken for finite, as the proof checks."""
    if node.domain:
        return NO_FACTS
    given = [roles[k].at(axes[k]) if k in roles and k in axes else NO_FACTS for k in range(len(node.inputs))]
    if node.op_type == "Where":
        return _where(node, given)
    if node.op_type == "Not":
        return Facts(zero=given[0].true, true=given[0].zero)
    if node.op_type in COMPARING:
        return _compared(node, given)
    traits = operator_of(node).traits
    if Trait.MOVES in traits or (node.op_type == "Concat" and {*axes} == {0}):  # tokens, and others behind them
        return given[0]
    if scaled := _scaled(node, given):
        return scaled
    low, high = _far(node, given)
    if Trait.ZERO_IF_ANY in traits:
        zero = any(each.zero for each in given)
        return Facts(zero=zero, low=low and not zero, high=high and not zero)
    if Trait.ZERO_IF_ALL in traits:
        return Facts(all(each.zero for each in given), False, _sinks(node, given), low, high)
    return Facts(zero=given[0].zero and Trait.ZERO in traits, low=low, high=high)


def _scaled(node: ir.Node, given: Sequence[Facts]) -> Facts | None:
    """Of entries times positive numbers, which keep the hidden ones below the visible ones."""
    for position in {"Mul": (0, 1), "Div": (0,)}.get(node.op_type, ()):
        number = constant(node.inputs[1 - position])
        if number is not None and bool(np.greater(number, 0).all()):
            factors = number.astype(np.float64) if node.op_type == "Mul" else 1 / number.astype(np.float64)
            return given[position]._replace(true=False, sunk=sunk_by(given[position].sunk * factors.min(initial=1.0)))
    return None


def _sinks(node: ir.Node, given: Sequence[Facts]) -> float:
    """A term that is high may lift what the others sink: a product of tokens that are filled with -1e9."""
    if node.op_type == "Add":
        return max(each.sunk for each in given) if all(each.sunk or not each.high for each in given) else 0.0
    if node.op_type == "Sub":
        return 0.0 if given[1].low else given[0].sunk
    return min(_of(node, given, position).sunk for position in range(len(given)))


def _far(node: ir.Node, given: Sequence[Facts]) -> tuple[bool, bool]:
    """Whether outputs may be low and high: a product of low ones may be both."""
    traits, low, high = operator_of(node).traits, [each.low for each in given], [each.high for each in given]
    if Trait.BOUNDED in traits:
        return False, False
    if node.op_type == "Sub":
        return low[0] or high[1], high[0] or low[1]
    if Trait.ZERO_IF_ALL in traits:
        return any(low), any(high)
    return (any(low + high),) * 2


def _compared(node: ir.Node, given: Sequence[Facts]) -> Facts:
    """0 with a number."""
    for position, other in enumerate(reversed(node.inputs)):
        number = constant(other)
        if given[position].zero and number is not None:
            pair = np.zeros_like(number), number
            answer = COMPARING[node.op_type](*(pair if position == 0 else pair[::-1]))
            return Facts(zero=not answer.any(), true=bool(answer.all()))
    return NO_FACTS


def _where(node: ir.Node, given: Sequence[Facts]) -> Facts:
    condition = given[0]
    if condition.true or condition.zero:
        return _of(node, given, 1 if condition.true else 2)
    left, right = (_of(node, given, k) for k in (1, 2))
    both = (left.zero and right.zero, left.true and right.true, min(left.sunk, right.sunk))
    return Facts(*both, left.low or right.low, left.high or right.high)


def _of(node: ir.Node, given: Sequence[Facts], position: int) -> Facts:
    """Of an input, which may be a constant."""
    value = node.inputs[position]
    number = constant(made_of(value, "Expand") or value)  # also of torch.full_like
    if number is None:
        return given[position]
    return Facts(
        zero=not number.any(),
        true=bool(number.dtype == bool and number.all()),
        sunk=sunk_by(np.negative(number, dtype=np.float64).min(initial=np.inf)),
        low=bool(np.less_equal(number, -SUNK).any()),
        high=bool(np.greater_equal(number, SUNK).any()),
    )


def is_never_negative(value: ir.Value | None) -> bool:
    """As the scores of SPLADE, log(1 + relu(x)) * mask, of a mask of integers without negative ones."""
    node, number = value.producer() if value is not None else None, constant(value)
    if number is not None:
        return bool(np.greater_equal(number, 0).all())
    if value is None or node is None or node.domain:
        return value is not None and value.dtype not in FLOATS
    if node.op_type == "Log":
        term = made_by(node.inputs[0], "Add")
        numbers = [constant(each) for each in term.inputs] if term is not None else []
        above = any(number is not None and bool(np.greater_equal(number, 1).all()) for number in numbers)
        return above and term is not None and all(map(is_never_negative, term.inputs))
    traits = operator_of(node).traits
    read = node.inputs[:1] if Trait.MOVES in traits else node.inputs
    return Trait.POSITIVE in traits or (Trait.SIGNED in traits and all(map(is_never_negative, read)))
