"""Compares the answers of a rewritten graph with those of the original, in float64 and in the graph's own dtype.

In: rounds of inputs with the original's answers, the rewritten graph and its file. Out: a `Proof` for each comparison,
or ProofFailed. The original is never rewritten, not even to drop outputs: numpy cuts the parts that are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from export.compiler.errors import NotSupported, ProcessEnded, ProofFailed
from export.compiler.graph.constants import Array
from export.compiler.proof.inputs import Feeds
from export.compiler.proof.rounds import Round
from export.compiler.proof.runner import AS_WRITTEN, WITHOUT_LAYOUTS, Runner, answers_apart, double_answers
from export.compiler.proof.tolerances import TOLERANCES, WORST, allowed, is_finite, relative_error

INPUTS_HINT = "--inputs FILE.npz --inputs-only takes your inputs alone"
SIZE_HINT = "--dims NAME=SIZE draws another size"
QUANTISED_HINT = (
    "float32's rounding may move a quantised activation by a step of its scale: rewrite the float file and quantise "
    f"the result, or {INPUTS_HINT}"
)


@dataclass(frozen=True)
class Proof:
    """The result of a comparison over all rounds. `vitbn compare --json` prints these fields.

    error: of the output that comes nearest to its tolerance, relative to the output's largest number, as `tolerance`
    and `own` are. beside: what the answers were compared with, in words. own: the error of the original in this
    precision, measured against float64; None where the original in this precision is the reference.
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
    """The largest relative error of each output over all rounds, and its tolerance.

    The tolerance of an output is that of its precision or, if larger, twice the error of the original itself. A
    float16 output has the precision float16, whatever dtype the weights have. beside: the reference, in words.
    quantised: the graph computes in integers; else an original whose own error exceeds WORST is refused.
    original_errors: empty where the original is the reference. precisions: of each output.
    """

    precision: str
    beside: str
    quantised: bool = False
    errors: list[float] = field(default_factory=list)
    original_errors: list[float] = field(default_factory=list)
    precisions: list[str] = field(default_factory=list)
    rounds: int = 0

    def add(
        self,
        expected: Sequence[Array],
        answers: Sequence[Array],
        original: Sequence[Array] | None = None,
        empty: bool = False,
    ) -> None:
        """Compares one round's outputs with the `expected` outputs.

        original: the original's outputs in this precision, where `expected` has a higher precision. empty: outputs may
        have no element.

        Raises ProofFailed if shapes differ or a number is not finite, NotSupported if the original's error exceeds
        WORST.
        """
        precisions = ["float16" if array.dtype == np.float16 else self.precision for array in answers]
        if original is not None:
            try:
                errors = _errors(expected, original, self.precision)
                if not self.quantised:
                    _check(errors, precisions, [WORST[name] for name in precisions])
                self.original_errors = np.maximum(self.original_errors or errors, errors).tolist()
            except ProofFailed as failed:
                hint = f"--proof float32 compares only the files; {INPUTS_HINT}"
                raise NotSupported(f"the file itself, beside its answers in float64: {failed}", hint) from failed
        errors = _errors(expected, answers, self.precision, empty)
        self.errors = np.maximum(self.errors or errors, errors).tolist()  # NaN stays
        self.precisions = precisions
        self.rounds += 1

    def proof(self) -> Proof:
        """Raises ProofFailed if an output exceeds its tolerance."""
        usual = [TOLERANCES[name] for name in self.precisions]
        limits = [allowed(*pair) for pair in zip(usual, self.original_errors or [0.0] * len(usual), strict=True)]
        try:
            _check(self.errors, self.precisions, limits)
        except ProofFailed as failed:
            hint = QUANTISED_HINT if self.quantised else INPUTS_HINT
            raise failed if self.precision == "float64" else ProofFailed(failed.reason, hint) from failed
        worst = max(range(len(limits)), key=lambda output: self.errors[output] / limits[output])
        own = self.original_errors[worst] if self.original_errors else None
        return Proof(self.precisions[worst], self.errors[worst], limits[worst], self.rounds, self.beside, own)


@dataclass(frozen=True)
class Proved:
    """proofs: one for each comparison that took place. source: where the inputs of all rounds came from, in words.

    feeds, answers: the first round's inputs, and the rewritten file's outputs for them, by name.
    """

    proofs: tuple[Proof, ...]
    source: str
    feeds: Feeds
    answers: dict[str, Array]


def prove(
    rounds: Iterable[Round],
    rewritten: ir.Model | None,
    runner: Runner,
    file_errors: Errors,
    say: Callable[[str], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Proved:
    """Compares the original with `rewritten`, in float64, and with its file in ONNX Runtime, which `runner` runs.

    Without a `rewritten` graph there is no comparison in float64. `file_errors` collects the errors of the file, in
    its precision. Rounds with answers `as_written` also compare both files without ONNX Runtime's optimiser. `say`
    gets progress; `warn` gets what could not be compared.

    Raises as `Errors` and its `proof`.
    """
    double_errors, sources = Errors("float64", "the original"), []
    reference = "the original, both without ONNX Runtime's optimiser"
    as_written_errors = Errors(file_errors.precision, reference, file_errors.quantised)
    as_written = None
    samples: list[tuple[Feeds, dict[str, Array]]] = []
    for inputs in rounds:
        if inputs.double is not None and rewritten is not None:
            say(f"the rewritten graph in float64, {inputs.source}")
            double_errors.add(inputs.double, double_answers(rewritten, inputs.feeds))
        say(f"the written file in ONNX Runtime, {inputs.source}")
        if (answers := _answers(runner, inputs, warn)) is None:
            continue
        if inputs.empty:
            _add_empty(file_errors, inputs, [*answers.values()])
        elif inputs.as_written is not None:
            as_written = as_written or runner.at(AS_WRITTEN)
            as_written_errors.add(inputs.as_written, [*as_written(inputs.feeds).values()])
            file_errors.add(inputs.as_written, [*answers.values()], inputs.answers)
        elif inputs.double is None:
            file_errors.add(inputs.answers, [*answers.values()])
        else:
            file_errors.add(inputs.double, [*answers.values()], inputs.answers)
        sources.append(inputs.source)
        samples = samples or [(inputs.feeds, answers)]
        del inputs, answers  # frees a large decoder's answers before the next round's are computed
    proofs = tuple(errors.proof() for errors in (double_errors, as_written_errors, file_errors) if errors.rounds)
    return Proved(proofs, "; ".join(sources), *samples[0])


def _add_empty(errors: Errors, inputs: Round, answers: Sequence[Array]) -> None:
    """Adds a round with empty inputs. Raises ProofFailed that names the round.

    Outputs may still hold numbers, such as a sum over no tokens; a bias that was carried over it would show here.
    """
    alone = Errors(errors.precision, errors.beside, original_errors=[*errors.original_errors])
    try:
        alone.add(inputs.answers, answers, empty=True)
        alone.proof()
    except ProofFailed as failed:
        raise ProofFailed(f"{inputs.source}: {failed.reason}", SIZE_HINT) from failed
    errors.add(inputs.answers, answers, empty=True)


def _answers(runner: Runner, inputs: Round, warn: Callable[[str], None]) -> dict[str, Array] | None:
    """The rewritten file's outputs by name; None if it fails where the original gives texts without tokens no number.

    Raises ProofFailed if it fails on other empty inputs that the original answers.

    ONNX Runtime lays out the channels of convolutions in blocks, and for that inserts a Reshape that fails on an empty
    batch; in other Reshapes it writes a computed size as -1. An error that occurs only with its optimiser is ONNX
    Runtime's, not the file's: `warn` gets it.
    """
    if not inputs.empty:
        return runner(inputs.feeds)
    try:
        return answers_apart(runner, inputs.feeds)
    except NotSupported as error:
        failed = ProofFailed(f"{inputs.source}, which the original answers: {error}", SIZE_HINT)
        if isinstance(error, ProcessEnded):
            raise failed from error
        for level, left_out in ((WITHOUT_LAYOUTS, "layout of convolutions"), (AS_WRITTEN, "optimiser")):
            with suppress(NotSupported):
                answers = answers_apart(runner.at(level), inputs.feeds)
                warn(f"Equal only without ONNX Runtime's {left_out}, {inputs.source}: with it {error}")
                return answers
        if all(not array.size and len(array) for array in inputs.answers):
            warn(f"Fails, {inputs.source}, where the original answers without a number: {error}")
            return None
        raise failed from error


def compare(expected: Sequence[Array], answers: Sequence[Array], precision: str, tolerance: float) -> float:
    """The largest error of an output, relative to the output's largest number. Raises ProofFailed above `tolerance`."""
    errors = _errors(expected, answers, precision)
    _check(errors, [precision] * len(errors), [tolerance] * len(errors))
    return max(errors)


def _check(errors: Sequence[float], precisions: Sequence[str], limits: Sequence[float]) -> None:
    """Raises ProofFailed if the error of an output exceeds its limit."""
    for output, (error, precision, limit) in enumerate(zip(errors, precisions, limits, strict=True)):
        if not error <= limit:  # NaN fails too
            expected = f"expected an error of at most {limit:.0e}"
            raise ProofFailed(f"{precision}: output {output}: {expected}, found {error:.1e}")


def _errors(expected: Sequence[Array], answers: Sequence[Array], precision: str, empty: bool = False) -> list[float]:
    """The largest error of each output, relative to its largest number; 0 for an `empty` output without elements.

    Raises ProofFailed if outputs differ in number or shape, or are not finite.
    """
    if len(expected) != len(answers) or not expected:
        raise ProofFailed(f"{precision}: expected {len(expected)} outputs, found {len(answers)}")
    errors = []
    for position, (before, after) in enumerate(zip(expected, answers, strict=True)):
        if before.shape != after.shape:
            raise ProofFailed(f"{precision}: output {position}: expected shape {before.shape}, found {after.shape}")
        if not before.size and not empty:
            raise ProofFailed(f"{precision}: output {position}: expected elements to compare, found none")
        if not is_finite(before):
            raise ProofFailed(f"{precision}: output {position} of the graph itself is not finite: give --inputs")
        errors.append(relative_error(before, after) if before.size else 0.0)
    return errors
