"""Proves that a rewritten graph computes what the original computes, in double and in the graph's own dtype.

In: what both gave for the same inputs. Out: `Proof`, or ProofFailed. No rewrite touches the original: numpy picks the
reads from its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from export.compiler.errors import NotSupported, ProcessEnded, ProofFailed
from export.compiler.graph.constants import Array
from export.compiler.proof.inputs import Feeds
from export.compiler.proof.rounds import Round
from export.compiler.proof.runner import AS_WRITTEN, WITHOUT_LAYOUTS, Runner, answers_apart, double_answers
from export.compiler.proof.tolerances import TOLERANCES, WORST, allowed, relative_error

OWN_INPUTS = "--inputs FILE.npz --inputs-only takes your inputs alone"


@dataclass(frozen=True)
class Proof:
    """`error`: of the output nearest to its `tolerance`, relative to its size. `beside` names the reference.

    `own`: the original's own error in this precision; None where it is the reference.
    """

    precision: str
    error: float
    tolerance: float
    rounds: int
    beside: str
    own: float | None

    def __str__(self) -> str:
        own = "" if self.own is None else f", where the original's own is {self.own:.1e}"
        limit = f"at most {self.tolerance:.0e}, beside {self.beside}"
        return f"{self.precision}: {self.error:.1e} of the outputs' size{own} ({limit}), {self.rounds} inputs"


@dataclass
class Errors:
    """The largest error of each output over all rounds.

    The tolerance of an output is that of its precision or, if larger, twice the error of the original itself. A
    float16 output has the precision float16 whatever the weights have. `bounded`: the original's error has a limit.
    """

    precision: str
    beside: str
    bounded: bool = True
    errors: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    precisions: list[str] = field(default_factory=list)
    rounds: int = 0

    def add(
        self,
        expected: Sequence[Array],
        found: Sequence[Array],
        original: Sequence[Array] | None = None,
        empty: bool = False,
    ) -> None:
        """`original`: its answers in this precision, where `expected` has a higher one. `empty`: outputs may be.

        Raises ProofFailed if shapes differ or a number is not finite, NotSupported if the original's error exceeds
        WORST.
        """
        precisions = ["float16" if array.dtype == np.float16 else self.precision for array in found]
        if original is not None:
            try:
                own = _errors(expected, original, self.precision)
                if self.bounded:
                    _check(own, precisions, [WORST[name] for name in precisions])
                self.own = np.maximum(self.own or own, own).tolist()
            except ProofFailed as failed:
                hint = f"--proof float32 compares only the files; {OWN_INPUTS}"
                raise NotSupported(f"the file itself, beside its answers in float64: {failed}", hint) from failed
        errors = _errors(expected, found, self.precision, empty)
        self.errors = np.maximum(self.errors or errors, errors).tolist()  # NaN stays
        self.precisions = precisions
        self.rounds += 1

    def proof(self) -> Proof:
        """Raises ProofFailed."""
        usual = [TOLERANCES[name] for name in self.precisions]
        limits = [allowed(*pair) for pair in zip(usual, self.own or [0.0] * len(usual), strict=True)]
        try:
            _check(self.errors, self.precisions, limits)
        except ProofFailed as failed:
            raise failed if self.precision == "float64" else ProofFailed(failed.reason, OWN_INPUTS) from failed
        worst = max(range(len(limits)), key=lambda output: self.errors[output] / limits[output])
        own = self.own[worst] if self.own else None
        return Proof(self.precisions[worst], self.errors[worst], limits[worst], self.rounds, self.beside, own)


@dataclass(frozen=True)
class Proved:
    """`feeds` and `answers`: of the first round, by the rewritten file."""

    proofs: tuple[Proof, ...]
    source: str
    feeds: Feeds
    answers: dict[str, Array]


def prove(
    rounds: Iterable[Round],
    rewritten: ir.Model | None,
    runner: Runner,
    own: Errors,
    say: Callable[[str], None] = lambda _: None,
    leave: Callable[[str], None] = lambda _: None,
) -> Proved:
    """`rewritten`: the graph, to be compared in double, too. `runner` runs its file; `own` compares in its precision.

    Rounds without double that have answers `as_written` are compared without ONNX Runtime's optimiser, too. `leave` is
    told of an answer that the file owes.

    Raises as `Errors` and its `proof`.
    """
    double, sources = Errors("float64", "the original"), []
    written = Errors(own.precision, "the original, both without ONNX Runtime's optimiser")
    plain = None
    samples: list[tuple[Feeds, dict[str, Array]]] = []
    for each in rounds:
        if each.double is not None and rewritten is not None:
            say(f"the rewritten graph in float64, {each.source}")
            double.add(each.double, double_answers(rewritten, each.feeds))
        say(f"the written file in ONNX Runtime, {each.source}")
        found = _answers(runner, each, leave)
        if each.empty:
            _add_empty(own, each, [*found.values()])
        elif each.as_written is not None:
            plain = plain or runner.at(AS_WRITTEN)
            written.add(each.as_written, [*plain(each.feeds).values()])
            own.add(each.as_written, [*found.values()], each.answers)
        elif each.double is None:
            own.add(each.answers, [*found.values()])
        else:
            own.add(each.double, [*found.values()], each.answers)
        sources.append(each.source)
        samples = samples or [(each.feeds, found)]
        del each, found  # a large decoder's answers, while the next are computed
    proofs = tuple(comparison.proof() for comparison in (double, written, own) if comparison.rounds)
    return Proved(proofs, "; ".join(sources), *samples[0])


def _add_empty(own: Errors, each: Round, found: Sequence[Array]) -> None:
    """Raises ProofFailed, also for a number: a sum over no tokens has no bias."""
    alone = Errors(own.precision, own.beside, own=[*own.own])
    try:
        alone.add(each.answers, found, empty=True)
        alone.proof()
    except ProofFailed as failed:
        raise ProofFailed(f"{each.source}: {failed.reason}", "--dims NAME=SIZE draws a size other than 0") from failed
    own.add(each.answers, found, empty=True)


def _answers(runner: Runner, each: Round, leave: Callable[[str], None]) -> dict[str, Array]:
    """Raises ProofFailed if the rewritten file does not answer empty inputs, as the original does.

    For blocks of channels ONNX Runtime puts in a Reshape that fails without rows, where it cannot tell that two values
    have the same batch: an error that comes with its layouts alone is not the file's.
    """
    if not each.empty:
        return runner(each.feeds)
    try:
        return answers_apart(runner, each.feeds)
    except NotSupported as error:
        failed = ProofFailed(f"{each.source}, which the original answers: {error}")
        if isinstance(error, ProcessEnded):
            raise failed from error
        try:
            found = answers_apart(runner.at(WITHOUT_LAYOUTS), each.feeds)
        except NotSupported:
            raise failed from error
        leave(f"Equal only without ONNX Runtime's layout of convolutions, {each.source}: with it {error}")
        return found


def compare(expected: Sequence[Array], found: Sequence[Array], precision: str, tolerance: float) -> float:
    """The largest error relative to the largest output; raises ProofFailed above the tolerance."""
    errors = _errors(expected, found, precision)
    _check(errors, [precision] * len(errors), [tolerance] * len(errors))
    return max(errors)


def _check(errors: Sequence[float], precisions: Sequence[str], limits: Sequence[float]) -> None:
    for output, (error, precision, limit) in enumerate(zip(errors, precisions, limits, strict=True)):
        if not error <= limit:  # NaN fails too
            expected = f"expected an error of at most {limit:.0e}"
            raise ProofFailed(f"{precision}: output {output}: {expected}, found {error:.1e}")


def _errors(expected: Sequence[Array], found: Sequence[Array], precision: str, empty: bool = False) -> list[float]:
    """Of each output, relative to its size; 0 where `empty` outputs have no element."""
    if len(expected) != len(found) or not expected:
        raise ProofFailed(f"{precision}: expected {len(expected)} outputs, found {len(found)}")
    errors = []
    for position, (before, after) in enumerate(zip(expected, found, strict=True)):
        if before.shape != after.shape:
            raise ProofFailed(f"{precision}: output {position}: expected shape {before.shape}, found {after.shape}")
        if not before.size and not empty:
            raise ProofFailed(f"{precision}: output {position}: expected elements to compare, found none")
        if not np.isfinite(before.astype(np.float64)).all():
            raise ProofFailed(f"{precision}: output {position} of the graph itself is not finite: give --inputs")
        errors.append(relative_error(before, after) if before.size else 0.0)
    return errors
