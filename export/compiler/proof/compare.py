"""Proves that a rewritten graph computes what the original computes, in double and in the graph's own dtype.

In: what both gave for the same inputs. Out: `Proof`, or ProofFailed. No rewrite touches the original: numpy picks the
reads from its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.compiler.errors import NotSupported, ProofFailed
from export.compiler.proof.inputs import Feeds
from export.compiler.proof.rounds import Round
from export.compiler.proof.runs import Array, Runner, double_answers

TOLERANCES = {"float64": 1e-10, "float32": 1e-5, "float16": 5e-3}  # relative to the outputs' size
WORST = {"float32": 3, "float16": 10}  # limit of the original's own error, in tolerances
FILL = 1e8  # networks write larger numbers into masked places


@dataclass(frozen=True)
class Proof:
    """`error` is the largest, relative to the outputs' size; `beside` names the reference."""

    precision: str
    error: float
    tolerance: float
    rounds: int
    beside: str

    def __str__(self) -> str:
        limit = f"at most {self.tolerance:.0e}, beside {self.beside}"
        return f"{self.precision}: {self.error:.1e} of the outputs' size ({limit}), {self.rounds} inputs"


@dataclass
class Comparison:
    """Keeps the largest error of each output over all rounds.

    The tolerance is the dtype's or, if larger, twice the error of the original itself.
    """

    precision: str
    beside: str
    errors: list[float] = field(default_factory=list)
    own: float = 0.0
    rounds: int = 0

    def add(self, expected: Sequence[Array], found: Sequence[Array], original: Sequence[Array] | None = None) -> None:
        """`original`: its answers in this precision, where `expected` has a higher one.

        Raises ProofFailed if shapes differ or a number is not finite, NotSupported if the original's error exceeds
        WORST.
        """
        if original is not None:
            limit = WORST[self.precision] * TOLERANCES[self.precision]
            try:
                self.own = max(self.own, compare(expected, original, self.precision, limit))
            except ProofFailed as failed:
                raise NotSupported(f"the file itself, beside its answers in float64: {failed}") from failed
        errors = _errors(expected, found, self.precision)
        self.errors = np.maximum(self.errors or errors, errors).tolist()  # NaN stays
        self.rounds += 1

    def proof(self) -> Proof:
        """Raises ProofFailed."""
        tolerance, beside = TOLERANCES[self.precision], self.beside
        if 2 * self.own > tolerance:
            tolerance = 2 * self.own
            beside += f"; the original in {self.precision} is off by {self.own:.1e}"
        return Proof(self.precision, _largest(self.errors, self.precision, tolerance), tolerance, self.rounds, beside)


@dataclass(frozen=True)
class Proved:
    """`feeds` and `answers`: of the first round, by the rewritten file."""

    proofs: tuple[Proof, ...]
    source: str
    feeds: Feeds
    answers: dict[str, Array]


def prove(
    rounds: Iterable[Round],
    rewritten: ir.Model,
    runner: Runner,
    own: Comparison,
    say: Callable[[str], None] = lambda _: None,
) -> Proved:
    """`runner` runs the rewritten file; `own` compares in its precision. Raises as `Comparison` and its `proof`."""
    double, sources = Comparison("float64", "the original"), []
    samples: list[tuple[Feeds, dict[str, Array]]] = []
    for each in rounds:
        if each.double is not None:
            say(f"the rewritten graph in float64, {each.source}")
            double.add(each.double, double_answers(rewritten, each.feeds))
        say(f"the written file in ONNX Runtime, {each.source}")
        found = runner(each.feeds)
        if each.double is None:
            own.add(each.answers, [*found.values()])
        else:
            own.add(each.double, [*found.values()], each.answers)
        sources.append(each.source)
        samples = samples or [(each.feeds, found)]
        del each, found  # a large decoder's answers, while the next are computed
    proofs = tuple(comparison.proof() for comparison in (double, own) if comparison.rounds)
    return Proved(proofs, "; ".join(sources), *samples[0])


def compare(expected: Sequence[Array], found: Sequence[Array], precision: str, tolerance: float) -> float:
    """The largest error relative to the largest output; raises ProofFailed above the tolerance."""
    return _largest(_errors(expected, found, precision), precision, tolerance)


def _largest(errors: Sequence[float], precision: str, tolerance: float) -> float:
    for position, error in enumerate(errors):
        if not error <= tolerance:  # NaN fails too
            limit = f"expected an error of at most {tolerance:.0e}"
            raise ProofFailed(
                f"{precision}: output {position}: {limit}, found {error:.1e}; other --inputs may suit it better"
            )
    return max(errors)


def _errors(expected: Sequence[Array], found: Sequence[Array], precision: str) -> list[float]:
    """Of each output, relative to its size."""
    if len(expected) != len(found) or not expected:
        raise ProofFailed(f"{precision}: expected {len(expected)} outputs, found {len(found)}")
    errors = []
    for position, (before, after) in enumerate(zip(expected, found, strict=True)):
        if before.shape != after.shape:
            raise ProofFailed(f"{precision}: output {position}: expected shape {before.shape}, found {after.shape}")
        if not before.size:
            raise ProofFailed(f"{precision}: output {position}: expected elements to compare, found none")
        left, right = before.astype(np.float64), after.astype(np.float64)
        if not np.isfinite(left).all():
            raise ProofFailed(f"{precision}: output {position} of the graph itself is not finite: give --inputs")
        errors.append(_error(left, right))
    return errors


def _error(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """The largest, relative to the largest number. What fills masked places would hide it and stands apart."""
    filled = np.abs(left) >= FILL
    parts = [(left[part], right[part]) for part in (filled, ~filled) if part.any()]
    errors = [np.abs(known - new).max() / (np.abs(known).max() or 1.0) for known, new in parts]
    return float(np.max(errors))  # NaN stays
