"""Recurrent layers in double, with lengths of their sequences, which onnx's ignore.

X (steps, batch, input), or (batch, steps, input) in layout 1; W (directions, gates * hidden, input), R (directions,
gates * hidden, hidden), B (directions, 2 * gates * hidden). Behind its length a sequence answers 0 and keeps its state.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np
from onnx.reference.op_run import OpRun

from export.compiler.graph.constants import Array

States = tuple[Array, ...]
Step = Callable[[Array, States], States]

FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "softplus": lambda x: np.logaddexp(x, 0),
}


def _functions(names: list[str] | None, usual: list[str], directions: int) -> list[list[Callable[[Array], Array]]]:
    """Of each direction."""
    given = [name.lower() for name in names or usual * directions]
    if unknown := [name for name in given if name not in FUNCTIONS]:
        raise NotImplementedError(f"expected activations of {', '.join(FUNCTIONS)}, found {unknown[0]}")
    wide = len(usual)
    return [[FUNCTIONS[name] for name in given[k * wide : (k + 1) * wide]] for k in range(directions)]


def _scan(x: Array, lengths: Array | None, step: Step, states: States, backwards: bool) -> tuple[Array, States]:
    """The first state of each step (steps, batch, hidden), and all states of the last."""
    steps, batch = x.shape[:2]
    ends = np.full(batch, steps) if lengths is None else lengths
    out = np.zeros((steps, batch, states[0].shape[1]))
    for number in range(steps):
        runs = number < ends
        places = np.where(runs, ends - 1 - number if backwards else number, 0)
        new = step(x[places, np.arange(batch)], states)
        states = tuple(np.where(runs[:, None], after, before) for after, before in zip(new, states, strict=True))
        out[places[runs], np.flatnonzero(runs)] = states[0][runs]
    return out, states


class Attributes(TypedDict, total=False):
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
    """One direction's weights: w (gates * hidden, input), r (gates * hidden, hidden), their biases (gates * hidden),
    peepholes (3 * hidden).
    """

    w: Array
    r: Array
    wb: Array
    rb: Array
    peepholes: Array
    functions: Sequence[Callable[[Array], Array]]
    attributes: Attributes


class _Recurrent(OpRun):
    functions: tuple[str, ...] = ()
    states = 1

    @abstractmethod
    def step(self, of: Direction) -> Step:
        """A function that computes the next states of `of` from an input."""

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
        """Those of Y and the last states that the node names."""
        if attributes.get("clip") or attributes.get("activation_alpha") or attributes.get("activation_beta"):
            raise NotImplementedError("expected no clip and no parameters of activations")
        if attributes.get("input_forget"):
            raise NotImplementedError("expected no coupled gates")
        directions, wide, hidden = w.shape[0], w.shape[1], r.shape[2]
        biases = np.zeros((directions, 2 * wide)) if b is None else b
        peepholes = np.zeros((directions, 3 * hidden)) if p is None else p
        functions = _functions(attributes.get("activations"), [*self.functions], directions)
        first = bool(attributes.get("layout"))  # the batch comes first
        steps = x.swapaxes(0, 1) if first else x
        zeros = np.zeros((directions, steps.shape[1], hidden))
        given = [
            zeros if array is None else array.swapaxes(0, 1) if first else array for array in (initial, initial_cell)
        ]
        outs, lasts = [], []
        for k in range(directions):
            step = self.step(
                Direction(w[k], r[k], biases[k, :wide], biases[k, wide:], peepholes[k], functions[k], attributes)
            )
            backwards = attributes.get("direction") == "reverse" or k == 1
            out, last = _scan(steps, lengths, step, tuple(array[k] for array in given[: self.states]), backwards)
            outs.append(out)
            lasts.append(last)
        y = np.stack(outs, 1)  # (steps, directions, batch, hidden)
        ends = [np.stack(arrays) for arrays in zip(*lasts, strict=True)]
        made = (y.transpose(2, 0, 1, 3), *(end.swapaxes(0, 1) for end in ends)) if first else (y, *ends)
        return made[: len(self.onnx_node.output)]


class RNN(_Recurrent):
    """h' = f(W x + R h + b)"""

    functions = ("tanh",)

    def step(self, of: Direction) -> Step:
        return lambda given, states: (of.functions[0](given @ of.w.T + states[0] @ of.r.T + of.wb + of.rb),)


class GRU(_Recurrent):
    """z, u = f(...); n = g(W x + b + u (R h + b)) or g(W x + b + R (u h) + b); h' = (1 - z) n + z h"""

    functions = ("sigmoid", "tanh")

    def step(self, of: Direction) -> Step:
        (f, g), hidden = of.functions, of.r.shape[1]
        last = slice(2 * hidden, None)

        def step(given: Array, states: States) -> States:
            (h,) = states
            own, back = given @ of.w.T + of.wb, h @ of.r.T + of.rb
            z, u = np.split(f(own[:, : 2 * hidden] + back[:, : 2 * hidden]), 2, axis=1)
            late = of.attributes.get("linear_before_reset")
            again = u * back[:, last] if late else (u * h) @ of.r[last].T + of.rb[last]
            return ((1 - z) * g(own[:, last] + again) + z * h,)

        return step


class LSTM(_Recurrent):
    """i, o, f, c~ = ...; c' = f c + i c~; h' = o h(c'), with peepholes for i, o, f"""

    functions = ("sigmoid", "tanh", "tanh")
    states = 2

    def step(self, of: Direction) -> Step:
        (f, g, h), (at_input, at_output, at_forget) = of.functions, np.split(of.peepholes, 3)

        def step(given: Array, states: States) -> States:
            before, cell = states
            made = np.split(given @ of.w.T + of.wb + before @ of.r.T + of.rb, 4, axis=1)
            kept, added = f(made[2] + at_forget * cell), f(made[0] + at_input * cell)
            new = kept * cell + added * g(made[3])
            return f(made[1] + at_output * new) * h(new), new

        return step
