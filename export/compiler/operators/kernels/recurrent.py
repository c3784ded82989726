"""Recurrent layers in float64. onnx's kernels ignore the lengths of the sequences.

X is (steps, batch, input), or (batch, steps, input) in layout 1; W (directions, gates * hidden, input), R (directions,
gates * hidden, hidden), B (directions, 2 * gates * hidden). In steps behind its length a sequence answers 0 and keeps
its state.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np
from onnx.reference.op_run import OpRun

from export.compiler.graph.constants import Array

States = tuple[Array, ...]  # each (batch, hidden)
Step = Callable[[Array, States], States]  # from an input (batch, input) and the states before it to the next states

FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "softplus": lambda x: np.logaddexp(x, 0),
}


def _functions(names: list[str] | None, default: list[str], directions: int) -> list[list[Callable[[Array], Array]]]:
    """The activation functions of each direction. `default`: their names if the node has none."""
    lower = [name.lower() for name in names or default * directions]
    if unknown := [name for name in lower if name not in FUNCTIONS]:
        raise NotImplementedError(f"expected activations of {', '.join(FUNCTIONS)}, found {unknown[0]}")
    count = len(default)
    return [[FUNCTIONS[name] for name in lower[k * count : (k + 1) * count]] for k in range(directions)]


def _scan(x: Array, lengths: Array | None, step: Step, states: States, backwards: bool) -> tuple[Array, States]:
    """The first state after each step, (steps, batch, hidden), and all states after the last step."""
    steps, batch = x.shape[:2]
    ends = np.full(batch, steps) if lengths is None else lengths
    out = np.zeros((steps, batch, states[0].shape[1]))
    for number in range(steps):
        is_running = number < ends
        positions = np.where(is_running, ends - 1 - number if backwards else number, 0)
        next_states = step(x[positions, np.arange(batch)], states)
        pairs = zip(next_states, states, strict=True)
        states = tuple(np.where(is_running[:, None], after, before) for after, before in pairs)
        out[positions[is_running], np.flatnonzero(is_running)] = states[0][is_running]
    return out, states


class Attributes(TypedDict, total=False):
    """The attributes of recurrent layers."""

    activation_alpha: list[float] | None
    activation_beta: list[float] | None
    activations: list[str] | None
    clip: float | None
    direction: str | None
    hidden_size: int | None
    input_forget: int | None
    layout: int | None
    linear_before_reset: int | None


@dataclass(frozen=True)
class Direction:
    """The weights of a direction: w (gates * hidden, input), r (gates * hidden, hidden), their biases wb and rb
    (gates * hidden), peepholes (3 * hidden).
    """

    w: Array
    r: Array
    wb: Array
    rb: Array
    peepholes: Array
    functions: Sequence[Callable[[Array], Array]]
    attributes: Attributes


class _Recurrent(OpRun):
    functions: tuple[str, ...] = ()  # the names of the default activations
    states = 1  # the number of states

    @abstractmethod
    def step(self, direction: Direction) -> Step:
        """The function that computes the next states of a direction."""

    def _run(
        self,
        x: Array,
        w: Array,
        r: Array,
        b: Array | None = None,
        lengths: Array | None = None,
        initial: Array | None = None,
        initial_cell: Array | None = None,
        p: Array | None = None,
        **attributes: Unpack[Attributes],
    ) -> tuple[Array, ...]:
        """Y and the last states, as far as the node names them. Raises NotImplementedError for rare attributes."""
        if attributes.get("clip") or attributes.get("activation_alpha") or attributes.get("activation_beta"):
            raise NotImplementedError("expected no clip and no parameters of activations")
        if attributes.get("input_forget"):
            raise NotImplementedError("expected no coupled gates")
        directions, gates, hidden = w.shape[0], w.shape[1], r.shape[2]
        biases = np.zeros((directions, 2 * gates)) if b is None else b
        peepholes = np.zeros((directions, 3 * hidden)) if p is None else p
        functions = _functions(attributes.get("activations"), [*self.functions], directions)
        batch_first = bool(attributes.get("layout"))
        steps = x.swapaxes(0, 1) if batch_first else x
        zeros = np.zeros((directions, steps.shape[1], hidden))
        initial_states = [
            zeros if array is None else array.swapaxes(0, 1) if batch_first else array
            for array in (initial, initial_cell)[: self.states]
        ]
        outs, lasts = [], []
        for k in range(directions):
            step = self.step(
                Direction(w[k], r[k], biases[k, :gates], biases[k, gates:], peepholes[k], functions[k], attributes)
            )
            backwards = attributes.get("direction") == "reverse" or k == 1
            out, last = _scan(steps, lengths, step, tuple(array[k] for array in initial_states), backwards)
            outs.append(out)
            lasts.append(last)
        y = np.stack(outs, 1)  # (steps, directions, batch, hidden)
        ends = [np.stack(arrays) for arrays in zip(*lasts, strict=True)]  # each (directions, batch, hidden)
        outputs = (y.transpose(2, 0, 1, 3), *(end.swapaxes(0, 1) for end in ends)) if batch_first else (y, *ends)
        return outputs[: len(self.onnx_node.output)]


class RNN(_Recurrent):
    """h' = f(W x + R h + b)"""

    functions = ("tanh",)

    def step(self, direction: Direction) -> Step:
        d = direction
        return lambda x, states: (d.functions[0](x @ d.w.T + states[0] @ d.r.T + d.wb + d.rb),)


class GRU(_Recurrent):
    """z, u = f(...); n = g(W x + b + u (R h + b)) or g(W x + b + R (u h) + b); h' = (1 - z) n + z h"""

    functions = ("sigmoid", "tanh")

    def step(self, direction: Direction) -> Step:
        d, (f, g), hidden = direction, direction.functions, direction.r.shape[1]
        last = slice(2 * hidden, None)

        def step(x: Array, states: States) -> States:
            (h,) = states
            from_x, from_h = x @ d.w.T + d.wb, h @ d.r.T + d.rb
            z, u = np.split(f(from_x[:, : 2 * hidden] + from_h[:, : 2 * hidden]), 2, axis=1)
            linear_first = d.attributes.get("linear_before_reset")
            reset = u * from_h[:, last] if linear_first else (u * h) @ d.r[last].T + d.rb[last]
            return ((1 - z) * g(from_x[:, last] + reset) + z * h,)

        return step


class LSTM(_Recurrent):
    """i, o, f, c~ = ...; c' = f c + i c~; h' = o h(c'), with peepholes for i, o, f"""

    functions = ("sigmoid", "tanh", "tanh")
    states = 2

    def step(self, direction: Direction) -> Step:
        d, (f, g, h) = direction, direction.functions
        input_peephole, output_peephole, forget_peephole = np.split(d.peepholes, 3)

        def step(x: Array, states: States) -> States:
            hidden, cell = states
            gates = np.split(x @ d.w.T + d.wb + hidden @ d.r.T + d.rb, 4, axis=1)  # i, o, f, c~
            forget, add = f(gates[2] + forget_peephole * cell), f(gates[0] + input_peephole * cell)
            next_cell = forget * cell + add * g(gates[3])
            return f(gates[1] + output_peephole * next_cell) * h(next_cell), next_cell

        return step
