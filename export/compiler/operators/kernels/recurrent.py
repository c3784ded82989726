"""Recurrent layers in float64: onnx's kernels, for the nodes that these compute as ONNX Runtime does.

X is (steps, batch, input). onnx's kernels ignore the sequences' lengths, and attributes that change the gates.
"""

from __future__ import annotations

from itertools import cycle
from typing import Any

from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_gru, op_lstm, op_rnn

from export.compiler.graph.constants import Array

IGNORED = ("activation_alpha", "activation_beta", "clip")


class _Recurrent(OpRun):
    library: Any
    known: tuple[str, ...] = ()  # the only ones that onnx's kernel knows, those by default

    def _run(self, *inputs: Array | None, **attributes: Any) -> tuple[Array, ...]:
        """Raises NotImplementedError for lengths other than the number of steps, and for rare attributes."""
        x, lengths = inputs[0], inputs[4] if len(inputs) > 4 else None
        if attributes.get("input_forget"):
            raise NotImplementedError("expected no coupled gates")
        if any(attributes.get(name) for name in IGNORED):
            raise NotImplementedError("expected no clip and no parameters of activations")
        for name, expected in zip(attributes.get("activations") or (), cycle(self.known), strict=False):
            if name.capitalize() != expected:
                raise NotImplementedError(f"expected the activation {expected}, found {name}")
        if x is None or (lengths is not None and not (lengths == len(x)).all()):
            raise NotImplementedError("expected sequences of equal lengths")
        answers: tuple[Array, ...] = self.library(self.onnx_node, self.run_params).run(*inputs)
        return answers


class RNN(_Recurrent):
    library, known = op_rnn.RNN_14, ("Tanh",)


class GRU(_Recurrent):
    library, known = op_gru.GRU, ("Sigmoid", "Tanh")


class LSTM(_Recurrent):
    library, known = op_lstm.LSTM, ("Sigmoid", "Tanh", "Tanh")
