"""Propagates facts about hidden tokens through a node: which outputs are 0, true, sunk, low or high there.

In: a node, the roles of its inputs, and for one axis of its output the axis of every input that it comes from. Out:
the `Facts` of that axis; masked_entries.py defines their words.
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
    """What holds at hidden tokens along one axis of the node's output.

    `roles`: of the inputs, by position. `axes`: position of an input -> its axis that this output axis comes from. 0
    times anything counts as 0: the other factors are taken to be finite, which the proof checks on its inputs.
    """
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
    low, high = _low_and_high(node, given)
    if Trait.ZERO_IF_ANY in traits:
        zero = any(facts.zero for facts in given)
        return Facts(zero=zero, low=low and not zero, high=high and not zero)
    if Trait.ZERO_IF_ALL in traits:
        return Facts(all(facts.zero for facts in given), False, _sinks(node, given), low, high)
    return Facts(zero=given[0].zero and Trait.ZERO in traits, low=low, high=high)


def _scaled(node: ir.Node, given: Sequence[Facts]) -> Facts | None:
    """The facts of entries times positive constants, which keep hidden entries below visible entries; else None."""
    for position in {"Mul": (0, 1), "Div": (0,)}.get(node.op_type, ()):
        factor = constant(node.inputs[1 - position])
        if factor is not None and bool(np.greater(factor, 0).all()):
            factors = factor.astype(np.float64) if node.op_type == "Mul" else 1 / factor.astype(np.float64)
            return given[position]._replace(true=False, sunk=sunk_by(given[position].sunk * factors.min(initial=1.0)))
    return None


def _sinks(node: ir.Node, given: Sequence[Facts]) -> float:
    """How far the output is sunk. A term that may be high could lift it again: for example scores of tokens that are
    filled with -1e9, whose products are 1e18.
    """
    if node.op_type == "Add":
        return max(facts.sunk for facts in given) if all(facts.sunk or not facts.high for facts in given) else 0.0
    if node.op_type == "Sub":
        return 0.0 if given[1].low else given[0].sunk
    return min(_of(node, given, position).sunk for position in range(len(given)))


def _low_and_high(node: ir.Node, given: Sequence[Facts]) -> tuple[bool, bool]:
    """Whether the output may be low, and whether it may be high. A product of low entries may be either."""
    traits, low, high = operator_of(node).traits, [facts.low for facts in given], [facts.high for facts in given]
    if Trait.BOUNDED in traits:
        return False, False
    if node.op_type == "Sub":
        return low[0] or high[1], high[0] or low[1]
    if Trait.ZERO_IF_ALL in traits:
        return any(low), any(high)
    return (any(low + high),) * 2


def _compared(node: ir.Node, given: Sequence[Facts]) -> Facts:
    """The comparison of hidden entries that are 0 with a constant is the same for all of them."""
    for position, other in enumerate(reversed(node.inputs)):
        compared = constant(other)
        if given[position].zero and compared is not None:
            pair = np.zeros_like(compared), compared
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
    """The facts of an input, which may be a constant, also one that an Expand repeats as torch.full_like does."""
    value = node.inputs[position]
    array = constant(made_of(value, "Expand") or value)
    if array is None:
        return given[position]
    return Facts(
        zero=not array.any(),
        true=bool(array.dtype == bool and array.all()),
        sunk=sunk_by(np.negative(array, dtype=np.float64).min(initial=np.inf)),
        low=bool(np.less_equal(array, -SUNK).any()),
        high=bool(np.greater_equal(array, SUNK).any()),
    )


def is_never_negative(value: ir.Value | None) -> bool:
    """Whether a value is 0 or more for all inputs, as SPLADE's scores log(1 + relu(x)) * mask are.

    Integers that the graph reads, as a mask, count as such.
    """
    node, array = value.producer() if value is not None else None, constant(value)
    if array is not None:
        return bool(np.greater_equal(array, 0).all())
    if value is None or node is None or node.domain:
        return value is not None and value.dtype not in FLOATS
    if node.op_type == "Log":
        term = made_by(node.inputs[0], "Add")
        summands = [constant(summand) for summand in term.inputs] if term is not None else []
        adds_one = any(summand is not None and bool(np.greater_equal(summand, 1).all()) for summand in summands)
        return adds_one and term is not None and all(map(is_never_negative, term.inputs))
    traits = operator_of(node).traits
    read = node.inputs[:1] if Trait.MOVES in traits else node.inputs
    return Trait.POSITIVE in traits or (Trait.SIGNED in traits and all(map(is_never_negative, read)))
