"""How a rewrite of a foreign graph ends without one: each error has an exit code of its own in `vitbn rewrite`."""

from __future__ import annotations

from dataclasses import dataclass

from export.errors import ExportError


class ForeignError(ExportError):
    """Nothing is written; the message names the value or the file, what was expected and what was found."""


class BadRequest(ForeignError):
    """The request does not fit the graph: an output, an input or a dimension that it does not have."""


class NothingToRewrite(ForeignError):
    """No pass applies, or a required pass does not."""


class NotSupported(ForeignError):
    """The graph holds what these passes do not read."""


class ProofFailed(ForeignError):
    """The rewritten graph does not compute what the graph did."""


class Refused(Exception):
    """Raised inside a pass where a site cannot be rewritten exactly; the pass records it and leaves the site alone."""

    def __init__(self, value: str, operator: str, reason: str) -> None:
        super().__init__(f"{value} ({operator}): {reason}")
        self.refusal = Refusal(value, operator, reason)


@dataclass(frozen=True)
class Refusal:
    """A site that a pass left alone: the value, the operator that makes it, and why."""

    value: str
    operator: str
    reason: str

    def __str__(self) -> str:
        return f"{self.value} ({self.operator}): {self.reason}"


@dataclass(frozen=True)
class Site:
    """A place that a pass rewrote: the value, the operator that made it, and what became of it."""

    value: str
    operator: str
    change: str

    def __str__(self) -> str:
        return f"{self.value} ({self.operator}): {self.change}"
