"""Chooses the inputs of the proof, and computes the original's answers for them.

In: the original file, a graph with its inputs, and options. Out: an iterator of `Round`s, with inputs that the original
answers with finite numbers. Each round is computed when it is needed and not kept, as answers may be large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path

import numpy as np
import onnx_ir as ir

from export.compiler.errors import BadRequest, ForeignError, NoReference, NotDrawn, NotSupported
from export.compiler.graph.constants import Array
from export.compiler.graph.requested_output_parts import Read
from export.compiler.graph.symbolic_shapes import bound_sizes
from export.compiler.proof.inputs import (
    Feeds,
    Sizes,
    channels,
    draw,
    empty_sizes,
    first_dimensions,
    free_dimensions,
    size_rounds,
)
from export.compiler.proof.masks import FULL, KINDS, MANY, SEEN, draw_masks
from export.compiler.proof.memory import check_memory
from export.compiler.proof.original_file import Original
from export.compiler.proof.runner import AS_WRITTEN, Arrays, answers_apart, double_answers
from export.compiler.proof.tolerances import FILL, is_finite

SMALL = 0.1  # an output is small below this fraction of its largest number in earlier rounds
DRAWS, SEED_STEP = 4, 1000  # draws of a round until no output is small, and the distance of their seeds


@dataclass(frozen=True)
class Round:
    """Inputs and the original's answers, cut to the parts that are read.

    source: where the inputs come from, in words. answers: by ONNX Runtime. double: in float64, or None. as_written: by
    ONNX Runtime without its optimiser, or None. empty: an axis of the inputs or of an answer may have size 0. Such
    a round has no `double`.
    """

    source: str
    feeds: Feeds
    answers: Arrays
    double: Arrays | None
    empty: bool = False
    as_written: Arrays | None = None


@dataclass(frozen=True)
class RoundOptions:
    """How to choose the inputs and which answers to compute.

    reads: the parts of the outputs that are compared; by default all. dims: sizes of free dimensions, for networks that
    need them. inputs: the user's .npz file and its arrays; with `alone` nothing else is drawn. double: also answers in
    float64. mask: the name of an attention mask, which is drawn in every kind; `hides`: it is true for hidden tokens.
    as_written: also answers without ONNX Runtime's optimiser.
    """

    reads: Sequence[Read] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[Path, Feeds] | None = None
    double: bool = False
    alone: bool = False
    mask: str | None = None
    hides: bool = False
    as_written: bool = False


def rounds(
    original: Original,
    graph: ir.Graph,
    options: RoundOptions,
    say: Callable[[str], None] = lambda _: None,
    warn: Callable[[str], None] = lambda _: None,
) -> Iterator[Round]:
    """The user's inputs, then drawn inputs of the first family of sizes that the original answers.

    Families are tried from small sizes to large, at last with the sizes of `options.dims`. After them come masks of
    every kind, then rounds in which a dimension is 0, as far as the original answers these. `say` gets progress; `warn`
    gets each empty batch that the original does not answer.

    Raises BadRequest if the original answers no inputs, NotSupported if the proof in double is impossible.
    """
    candidates = _Candidates(original, graph, options, say, warn)
    if options.inputs:
        file, feeds = options.inputs
        candidates.check_memory([bound_sizes(graph, feeds)])
        yield candidates.round_of(str(file), feeds, candidates.answers(feeds))
        if options.alone:
            return
    booleans = any(value.dtype == ir.DataType.BOOL for value in graph.inputs)
    for inverted, family in product((False, True) if booleans else (False,), size_rounds(graph, options.dims)):
        candidates.inverted = inverted
        candidates.check_memory(family.needed)
        answered = 0
        for drawn in map(candidates.attempt, family.needed, count()):
            if drawn is None:
                break
            yield drawn
            answered += 1
        if answered == len(family.needed):
            for number, sizes in enumerate(family.more, answered):
                yield from filter(None, [candidates.attempt(sizes, number) or candidates.attempt_empty(sizes)])
            yield from candidates.masked(family.needed[-1])
            empty = empty_sizes(graph, family.needed[1 % len(family.needed)], {*channels(graph), *options.dims})
            yield from filter(None, map(candidates.attempt_empty, empty))
            return
    if not options.inputs:
        raise candidates.failure()


class _Candidates:
    """Draws candidates for rounds, and keeps those that the original answers."""

    def __init__(
        self,
        original: Original,
        graph: ir.Graph,
        options: RoundOptions,
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self.original, self.graph, self.options, self.say, self.warn = original, graph, options, say, warn
        self.runner = original.runner
        self._check_outputs()
        self.as_written = self.runner.at(AS_WRITTEN) if options.as_written else self.runner
        self.largest: list[float] = []  # the largest number of each output in all rounds so far
        self.ranks: list[int] = []  # of the outputs
        self.inverted = False  # whether masks of booleans are drawn true for hidden tokens
        self.reason = ""  # why the first attempt failed
        self.unsupported: ForeignError | None = None  # the first error of a proof in double

    def _check_outputs(self) -> None:
        """Raises NotSupported if an output that is read has strings, or is no tensor."""
        read = {read.output for read in self.options.reads} or {*self.runner.outputs}
        for value in self.runner.session.get_outputs():
            if value.name in read and (value.type == "tensor(string)" or not value.type.startswith("tensor(")):
                raise NotSupported(f"output {value.name!r}: expected numbers, found {value.type}")

    def attempt(self, sizes: Sizes, seed: int, given: Mapping[str, Array] | None = None) -> Round | None:
        """A round of drawn inputs of these sizes, of which `given` replaces some; None if the original does not answer.

        It may need a minimal length, or refuse a batch together with a past.
        """
        drawn = self._drawn(sizes, seed, given or {})
        if drawn is None:
            return None
        feeds, answers = drawn
        try:
            return self.round_of(_text(sizes) + (" with masks of every kind" if given else ""), feeds, answers)
        except ForeignError as error:  # no output for a window larger than the image
            self.unsupported = self.unsupported or error
            return None

    def _drawn(self, sizes: Sizes, seed: int, given: Mapping[str, Array]) -> tuple[Feeds, Arrays] | None:
        """Inputs and answers, the last of up to DRAWS draws; None if the original does not answer.

        Draws again where an output is small beside those of earlier rounds: rounding is a large part of a single logit
        that happens to lie near 0. A first output with a single number has nothing to compare with, so it is drawn
        again, too.
        """
        drawn, is_first = None, not self.largest
        for attempt in range(DRAWS):
            feeds = draw(self.graph, sizes, seed + attempt * SEED_STEP, self.inverted)
            feeds |= {name: array.astype(feeds[name].dtype) for name, array in given.items()}
            try:
                answers = self.answers(feeds)
            except ForeignError as error:
                self.reason = self.reason or str(error)
                break
            drawn, self.ranks = (feeds, answers), [array.ndim for array in answers]
            magnitudes = [np.abs(array.astype(np.float64)) for array in answers]
            largest = [float(array.max(where=array < FILL, initial=0.0)) for array in magnitudes]
            self.largest = np.maximum(self.largest or largest, largest).tolist()
            lone_number = is_first and not attempt and any(array.size == 1 for array in answers)
            if not lone_number and all(new >= SMALL * old for new, old in zip(largest, self.largest, strict=True)):
                break
        return drawn

    def masked(self, sizes: Sizes) -> Iterator[Round]:
        """Rounds with masks of every kind. Raises NotSupported if the original answers none of them."""
        mask = next((value for value in self.graph.inputs if value.name == self.options.mask), None)
        if mask is None or mask.shape is None:
            return
        texts, length = (str(dim) for dim in mask.shape.dims)
        tokens, any_answered = sizes.get(length, MANY[1]), False
        batches = [
            (len(KINDS), tokens, KINDS),
            (len(SEEN), tokens, SEEN),
            (*MANY, SEEN),
            (1, tokens, SEEN[2:3]),
            (len(SEEN), tokens, FULL),
        ]
        for seed, (text_count, token_count, kinds) in enumerate(batches):
            drawn = {str(mask.name): draw_masks(text_count, token_count, seed, kinds) != self.options.hides}
            answered = self.attempt(sizes | {texts: text_count, length: token_count}, seed, drawn)
            if answered is not None:
                any_answered = True
                yield answered
        if not any_answered:
            raise NotSupported(f"packed: expected finite answers beside drawn masks, found none: {self.reason}")

    def attempt_empty(self, sizes: Sizes) -> Round | None:
        """A round in which a size, or one of an answer, is 0; None unless the answer is finite and has the usual rank.

        A mean over no token is not finite. ONNX Runtime's ArgMax over no token keeps the axis that it should drop.
        """
        feeds = draw(self.graph, sizes, inverted=self.inverted)
        try:
            answers = picked(answers_apart(self.runner, feeds), self.options.reads, self._mask(feeds))
            if not all(map(is_finite, answers)):
                raise NotSupported("expected finite numbers, found others")
            if (ranks := [array.ndim for array in answers]) != self.ranks:
                raise NotSupported(f"expected outputs of ranks {self.ranks}, found {ranks}")
        except ForeignError as error:
            if any(not sizes[symbol] for symbol in first_dimensions(self.graph) & sizes.keys()):
                self.warn(f"Not compared, {_text(sizes)}: the original gives no answer: {error}")
            return None
        return Round(_text(sizes), feeds, answers, None, empty=True)

    def answers(self, feeds: Feeds) -> Arrays:
        """The original's answers by ONNX Runtime. Raises NotSupported if it does not run or they are not finite."""
        return self._finite(self.runner(feeds), feeds)

    def round_of(self, source: str, feeds: Feeds, answers: Arrays) -> Round:
        """A round with the further answers that the options ask for. Raises NotSupported if they are impossible."""
        if self.options.as_written:
            return Round(source, feeds, answers, None, as_written=self._finite(self.as_written(feeds), feeds))
        if not self.options.double:
            return Round(source, feeds, answers, None)
        self.say(f"the original in float64, {source}")
        plain = self.original.plain
        names = [str(value.name) for value in plain.graph.outputs]
        double = dict(zip(names, double_answers(plain, feeds), strict=True))
        return Round(source, feeds, answers, self._finite(double, feeds))

    def _mask(self, feeds: Feeds) -> Array | None:
        return (feeds[self.options.mask] != 0) != self.options.hides if self.options.mask is not None else None

    def _finite(self, outputs: Mapping[str, Array], feeds: Feeds) -> Arrays:
        """The parts that are read. Raises BadRequest if a part is missing, NotSupported if a number is not finite."""
        parts = picked(outputs, self.options.reads, self._mask(feeds))
        for position, array in enumerate(parts):
            if not array.size or not is_finite(array):
                raise NotSupported(
                    f"output {position}: expected finite numbers, found {array.shape} with others or none"
                )
        return parts

    def check_memory(self, sizes: Sequence[Sizes]) -> None:
        """Raises NotSupported if the options ask for a proof in double that does not fit into memory."""
        if self.options.double:
            check_memory(self.graph, {symbol: max(bound[symbol] for bound in sizes) for symbol in sizes[0]})

    def failure(self) -> ForeignError:
        """The error that says why the original answered no family of sizes, with the option that helps."""
        dims = ",".join(f"{symbol}=SIZE" for symbol in free_dimensions(self.graph))
        if isinstance(self.unsupported, NoReference):
            return self.unsupported
        if self.unsupported:
            hint = f"--dims {dims} sets other sizes" if dims else ""
            return type(self.unsupported)(str(self.unsupported), hint)
        if " that is stale, " in self.reason or "Expected: 0 " in self.reason:  # no size helps an axis of fixed size 0
            return BadRequest(self.reason)
        if batch := self._only_batch():
            reason = f"expected the file to run at any size that it declares free: {self.reason}"
            return NotDrawn(reason, f"--dims {batch} gives its size")
        ways = "--inputs" + (f" or --dims {dims}" if dims else "")
        return NotDrawn(f"drawn inputs: {self.reason}", f"{ways} gives others")

    def _only_batch(self) -> str:
        """`batch=1` if the file runs with first axes of size 1, else an empty string."""
        free = {*free_dimensions(self.graph)} - self.options.dims.keys()
        ones = dict.fromkeys(sorted(first_dimensions(self.graph) & free), 1)
        for family in size_rounds(self.graph, {**self.options.dims, **ones}) if ones else ():
            fits = all(sizes.items() >= ones.items() for sizes in family.needed)
            if fits and all(map(self._runs, family.needed, count())):
                return ",".join(f"{symbol}=1" for symbol in ones)
        return ""

    def _runs(self, sizes: Sizes, seed: int) -> bool:
        try:
            self.answers(draw(self.graph, sizes, seed))
        except ForeignError:
            return False
        return True


def picked(outputs: Mapping[str, Array], reads: Sequence[Read], mask: Array | None = None) -> Arrays:
    """The parts `reads` of the outputs, or all outputs. `mask` (texts, tokens): for reads of tokens that it shows.

    The parts are copies, as a view would keep all of an output in memory. Raises BadRequest for a part that is not
    there.
    """
    return [read.of(outputs[read.output], mask).copy() for read in reads] if reads else [*outputs.values()]


def _text(sizes: Sizes) -> str:
    return "drawn at " + (", ".join(f"{name}={size}" for name, size in sizes.items()) or "fixed sizes")
