"""Errors of the compiler. `vitbn rewrite` has an exit code for each kind of ForeignError. `Refused` stays inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


class ExportError(Exception):
    """The message is a single line for the user."""


class ForeignError(ExportError):
    """An ONNX file cannot be rewritten or compared.

    reason: names the value or the file. hint: options of `vitbn rewrite` and `vitbn compare` that help.
    """

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(f"{reason}; {hint}" if hint else reason)
        self.reason = reason


class BadRequest(ForeignError):
    """The graph lacks the requested output, input or dimension."""


class NotDrawn(BadRequest):
    """The original fails on all inputs that were drawn at random."""


class NothingToRewrite(ForeignError):
    """No pass applies, or a required pass does not. `passes`: what each pass says, as "name: reason"."""

    def __init__(self, reason: str, passes: Sequence[str] = ()) -> None:
        super().__init__(reason, "; ".join(passes))
        self.passes = passes


class NotSupported(ForeignError):
    """The passes or the proof do not support the graph."""


class ProcessEnded(NotSupported):
    """ONNX Runtime ended its process, or did not answer in time."""


class NoReference(NotSupported):
    """No reference in float64 exists for an operator of the graph."""


class ProofFailed(ForeignError):
    """The rewritten graph gives other answers than the original."""


class Slower(ForeignError):
    """The rewritten file takes longer than the original."""


class Refused(Exception):
    """A pass cannot change a place of the graph. The pass records the reason and leaves the place as it is."""

    def __init__(self, value: str, operator: str, reason: str) -> None:
        self.refusal = Site(value, operator, reason)
        super().__init__(str(self.refusal))

    @classmethod
    def at(cls, node: ir.Node, reason: str) -> Refused:
        return cls.of(node.outputs[0], reason)

    @classmethod
    def of(cls, value: ir.Value, reason: str) -> Refused:
        return cls(value.name or "", operator(value), reason)


def operator(value: ir.Value) -> str:
    """The operator that computes the value, "constant" or "graph input"."""
    producer = value.producer()
    return producer.op_type if producer is not None else "constant" if value.const_value is not None else "graph input"


@dataclass(frozen=True)
class Site:
    """A place of the graph. `message`: what a pass changed there, or why it changed nothing."""

    value: str
    operator: str
    message: str

    @classmethod
    def at(cls, node: ir.Node, message: str) -> Site:
        return cls(node.outputs[0].name or "", node.op_type, message)

    def __str__(self) -> str:
        return f"{self.value} ({self.operator}): {self.message}"
