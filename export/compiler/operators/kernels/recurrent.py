"""Recurrent layers in double, with lengths of their sequences, which onnx's ignore.

X (steps, batch, input), or (batch, steps, input) in layout 1; W (directions, gates * hidden, input), R (directions,
gates * hidden, hidden), B (directions, 2 * gates * hidden). Behind its length a sequence answers 0 and keeps its state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

Array = NDArray[Any]
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


def _run(
    x: Array,
    w: Array,
    lengths: Array | None,
    initial: list[Array | None],
    direction: str | None,
    layout: int | None,
    step_of: Callable[[int], Step],
    hidden: int,
) -> tuple[Array, ...]:
    """Y, and the last states."""
    steps = x.swapaxes(0, 1) if layout else x
    zeros = np.zeros((len(w), steps.shape[1], hidden))
    begin = [zeros if array is None else array.swapaxes(0, 1) if layout else array for array in initial]
    outs, lasts = [], []
    for k in range(len(w)):
        backwards = direction == "reverse" or k == 1
        out, last = _scan(steps, lengths, step_of(k), tuple(array[k] for array in begin), backwards)
        outs.append(out)
        lasts.append(last)
    y = np.stack(outs, 1)  # (steps, directions, batch, hidden)
    ends = [np.stack(arrays) for arrays in zip(*lasts, strict=True)]
    return (y.transpose(2, 0, 1, 3), *(end.swapaxes(0, 1) for end in ends)) if layout else (y, *ends)


class _Recurrent(OpRun):
    op_domain = ""
    gates = 1

    def outputs(self, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """Those that the node names."""
        return arrays[: len(self.onnx_node.output)]

    def biases(self, b: Array | None, directions: int, hidden: int) -> tuple[Array, Array]:
        """Of W and of R, (directions, gates * hidden)."""
        both = np.zeros((directions, 2 * self.gates * hidden)) if b is None else b
        return both[:, : self.gates * hidden], both[:, self.gates * hidden :]


class RNN(_Recurrent):
    """h' = f(W x + R h + b)"""

    def _run(
        self,
        x: Array,
        w: Array,
        r: Array,
        b: Array | None = None,
        lengths: Array | None = None,
        initial: Array | None = None,
        activation_alpha: list[float] | None = None,
        activation_beta: list[float] | None = None,
        activations: list[str] | None = None,
        clip: float | None = None,
        direction: str | None = None,
        hidden_size: int | None = None,
        layout: int | None = None,
    ) -> tuple[Array, ...]:
        _check_plain(clip, activation_alpha, activation_beta)
        wb, rb = self.biases(b, len(w), r.shape[2])
        functions = _functions(activations, ["tanh"], len(w))

        def step_of(k: int) -> Step:
            return lambda given, states: (functions[k][0](given @ w[k].T + states[0] @ r[k].T + wb[k] + rb[k]),)

        return self.outputs(_run(x, w, lengths, [initial], direction, layout, step_of, r.shape[2]))


class GRU(_Recurrent):
    """z, u = f(...); n = g(W x + b + u (R h + b)) or g(W x + b + R (u h) + b); h' = (1 - z) n + z h"""

    gates = 3

    def _run(
        self,
        x: Array,
        w: Array,
        r: Array,
        b: Array | None = None,
        lengths: Array | None = None,
        initial: Array | None = None,
        activation_alpha: list[float] | None = None,
        activation_beta: list[float] | None = None,
        activations: list[str] | None = None,
        clip: float | None = None,
        direction: str | None = None,
        hidden_size: int | None = None,
        layout: int | None = None,
        linear_before_reset: int | None = None,
    ) -> tuple[Array, ...]:
        _check_plain(clip, activation_alpha, activation_beta)
        hidden = r.shape[2]
        wb, rb = self.biases(b, len(w), hidden)
        functions = _functions(activations, ["sigmoid", "tanh"], len(w))

        def step_of(k: int) -> Step:
            (f, g), last = functions[k], slice(2 * hidden, None)

            def step(given: Array, states: States) -> States:
                (h,) = states
                own, back = given @ w[k].T + wb[k], h @ r[k].T + rb[k]
                z, u = np.split(f(own[:, : 2 * hidden] + back[:, : 2 * hidden]), 2, axis=1)
                again = u * back[:, last] if linear_before_reset else (u * h) @ r[k][last].T + rb[k][last]
                return ((1 - z) * g(own[:, last] + again) + z * h,)

            return step

        return self.outputs(_run(x, w, lengths, [initial], direction, layout, step_of, hidden))


class LSTM(_Recurrent):
    """i, o, f, c~ = ...; c' = f c + i c~; h' = o h(c'), with peepholes P (directions, 3 * hidden) for i, o, f"""

    gates = 4

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
        activation_alpha: list[float] | None = None,
        activation_beta: list[float] | None = None,
        activations: list[str] | None = None,
        clip: float | None = None,
        direction: str | None = None,
        hidden_size: int | None = None,
        input_forget: int | None = None,
        layout: int | None = None,
    ) -> tuple[Array, ...]:
        _check_plain(clip, activation_alpha, activation_beta)
        if input_forget:
            raise NotImplementedError("expected no coupled gates")
        hidden = r.shape[2]
        wb, rb = self.biases(b, len(w), hidden)
        functions = _functions(activations, ["sigmoid", "tanh", "tanh"], len(w))
        peepholes = np.zeros((len(w), 3 * hidden)) if p is None else p

        def step_of(k: int) -> Step:
            (f, g, h), (at_input, at_output, at_forget) = functions[k], np.split(peepholes[k], 3)

            def step(given: Array, states: States) -> States:
                before, cell = states
                made = np.split(given @ w[k].T + wb[k] + before @ r[k].T + rb[k], 4, axis=1)
                kept, added = f(made[2] + at_forget * cell), f(made[0] + at_input * cell)
                new = kept * cell + added * g(made[3])
                return f(made[1] + at_output * new) * h(new), new

            return step

        return self.outputs(_run(x, w, lengths, [initial, initial_cell], direction, layout, step_of, hidden))


def _check_plain(clip: float | None, *given: list[float] | None) -> None:
    if clip or any(given):
        raise NotImplementedError("expected no clip and no parameters of activations")
