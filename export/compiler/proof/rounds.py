"""Chooses the inputs of the proof: those on which the original gives finite answers.

In: a file, a graph of its inputs and the reads. Out: a `Round` at a time; none is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import onnx_ir as ir

from export.compiler.errors import BadRequest, ForeignError, NoReference, NotDrawn, NotSupported
from export.compiler.graph.constants import Array
from export.compiler.graph.output_slices import Read
from export.compiler.proof.inputs import (
    Feeds,
    Sizes,
    bound_sizes,
    channels,
    draw,
    empty_sizes,
    first_dimensions,
    free_dimensions,
    size_rounds,
)
from export.compiler.proof.masks import KINDS, MANY, SEEN, WHOLE, draw_masks
from export.compiler.proof.memory import check_memory
from export.compiler.proof.original import Original
from export.compiler.proof.runner import AS_WRITTEN, Arrays, answers_apart, double_answers
from export.compiler.proof.tolerances import FILL

SMALL = 0.1  # of an output's largest number in the rounds before
DRAWS, FAR_SEED = 4, 1000  # tries to draw more, and how far apart their seeds are


@dataclass(frozen=True)
class Round:
    """`answers` and `double` are the parts that are read; `double` is None without a proof in double. `as_written`: the
    answers without ONNX Runtime's optimiser, if they are asked for.

    `empty`: an axis of the inputs has no element, so `answers` may have none, and there is no `double`.
    """

    source: str
    feeds: Feeds
    answers: Arrays
    double: Arrays | None
    empty: bool = False
    as_written: Arrays | None = None


@dataclass(frozen=True)
class Asked:
    """`inputs`: the user's own file and its arrays; `alone`: draws none. `dims`: sizes that some networks need.

    `mask`: an input that hides tokens, drawn in every kind. `as_written`: also asks without ONNX Runtime's optimiser.
    """

    reads: Sequence[Read] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[Path, Feeds] | None = None
    double: bool = False
    alone: bool = False
    mask: str | None = None
    as_written: bool = False


def rounds(
    original: Original,
    graph: ir.Graph,
    asked: Asked,
    say: Callable[[str], None] = lambda _: None,
    leave: Callable[[str], None] = lambda _: None,
) -> Iterator[Round]:
    """The user's inputs, then drawn ones: sizes are tried from small to large, then with --dims fixed.

    Last a dimension is 0, wherever the original answers that with numbers or an empty output. `leave` is told of an
    empty batch that it does not answer.

    Raises BadRequest if nothing runs, NotSupported if the proof in double is impossible.
    """
    runs = _Answers(original, graph, asked, say, leave)
    if asked.inputs:
        file, feeds = asked.inputs
        runs.check_memory([bound_sizes(graph, feeds)])
        yield runs.answered(str(file), feeds, runs.answers(feeds))
        if asked.alone:
            return
    for family in size_rounds(graph, asked.dims):
        runs.check_memory(family.needed)
        ran = 0
        for made in map(runs.attempt, family.needed, count()):
            if made is None:
                break
            yield made
            ran += 1
        if ran == len(family.needed):
            yield from filter(None, map(runs.attempt, family.more, count(ran)))
            yield from runs.masked(family.needed[-1])
            empty = empty_sizes(graph, family.needed[1 % len(family.needed)], {*channels(graph), *asked.dims})
            yield from filter(None, map(runs.attempt_empty, empty))
            return
    if not asked.inputs:
        raise runs.failure()


class _Answers:
    def __init__(
        self,
        original: Original,
        graph: ir.Graph,
        asked: Asked,
        say: Callable[[str], None],
        leave: Callable[[str], None],
    ) -> None:
        self.original, self.graph, self.asked, self.say, self.leave = original, graph, asked, say, leave
        self.runner = original.runner
        self.as_written = self.runner.at(AS_WRITTEN) if asked.as_written else self.runner
        self.sizes: list[float] = []  # the largest of each output
        self.ranks: list[int] = []  # of the outputs
        self.reason = ""  # of the first attempt that failed
        self.unsupported: ForeignError | None = None

    def attempt(self, sizes: Sizes, seed: int, given: Mapping[str, Array] | None = None) -> Round | None:
        """None if the original does not answer: it may need a minimal length, or no batch beside a past."""
        drawn = self._drawn(sizes, seed, given or {})
        if drawn is None:
            return None
        feeds, answers = drawn
        try:
            return self.answered(_text(sizes) + (" with masks of every kind" if given else ""), feeds, answers)
        except ForeignError as error:  # no output for a window larger than the image
            self.unsupported = self.unsupported or error
            return None

    def _drawn(self, sizes: Sizes, seed: int, given: Mapping[str, Array]) -> tuple[Feeds, Arrays] | None:
        """Drawn anew where an output is small beside those of the draws before: rounding is large beside a single
        logit that happens to lie near 0. The first single number has none before it.
        """
        made, first = None, not self.sizes
        for other in range(DRAWS):
            feeds = draw(self.graph, sizes, seed + other * FAR_SEED)
            feeds |= {name: array.astype(feeds[name].dtype) for name, array in given.items()}
            try:
                answers = self.answers(feeds)
            except ForeignError as error:
                self.reason = self.reason or str(error)
                break
            made, self.ranks = (feeds, answers), [array.ndim for array in answers]
            found = [np.abs(array.astype(np.float64)) for array in answers]
            drawn = [float(array.max(where=array < FILL, initial=0.0)) for array in found]
            self.sizes = np.maximum(self.sizes or drawn, drawn).tolist()
            alone = first and not other and any(array.size == 1 for array in answers)
            if not alone and all(size >= SMALL * usual for size, usual in zip(drawn, self.sizes, strict=True)):
                break
        return made

    def masked(self, sizes: Sizes) -> Iterator[Round]:
        """Masks of every kind; raises NotSupported if the original answers none."""
        mask = next((value for value in self.graph.inputs if value.name == self.asked.mask), None)
        if mask is None or mask.shape is None:
            return
        texts, length = (str(dim) for dim in mask.shape.dims)
        tokens, made = sizes.get(length, MANY[1]), []
        every = [(len(KINDS), tokens, KINDS), (len(SEEN), tokens, SEEN), (*MANY, SEEN)]
        wanted = [*every, (1, tokens, SEEN[2:3]), (len(SEEN), tokens, WHOLE)]
        for seed, (many, long, kinds) in enumerate(wanted):
            drawn = {str(mask.name): draw_masks(many, long, seed, kinds)}
            made.append(self.attempt(sizes | {texts: many, length: long}, seed, drawn))
            if (last := made[-1]) is not None:
                yield last
        if not any(made):
            raise NotSupported(f"packed: expected finite answers beside drawn masks, found none: {self.reason}")

    def attempt_empty(self, sizes: Sizes) -> Round | None:
        """None without an answer that is finite, as a mean of no token is not, and has the rank of the others.

        ONNX Runtime's ArgMax of no token keeps its axis.
        """
        feeds = draw(self.graph, sizes)
        try:
            answers = picked(answers_apart(self.runner, feeds), self.asked.reads, self._mask(feeds))
            if not all(np.isfinite(array.astype(np.float64)).all() for array in answers):
                raise NotSupported("expected finite numbers, found others")
            if (ranks := [array.ndim for array in answers]) != self.ranks:
                raise NotSupported(f"expected outputs of ranks {self.ranks}, found {ranks}")
        except ForeignError as error:
            if any(not sizes[symbol] for symbol in first_dimensions(self.graph) & sizes.keys()):
                self.leave(f"Not compared, {_text(sizes)}: the original gives no answer: {error}")
            return None
        return Round(_text(sizes), feeds, answers, None, empty=True)

    def answers(self, feeds: Feeds) -> Arrays:
        return self._finite(self.runner(feeds), feeds)

    def answered(self, source: str, feeds: Feeds, answers: Arrays) -> Round:
        if self.asked.as_written:
            return Round(source, feeds, answers, None, as_written=self._finite(self.as_written(feeds), feeds))
        if not self.asked.double:
            return Round(source, feeds, answers, None)
        self.say(f"the original in float64, {source}")
        plain = self.original.plain
        names = [str(value.name) for value in plain.graph.outputs]
        double = dict(zip(names, double_answers(plain, feeds), strict=True))
        return Round(source, feeds, answers, self._finite(double, feeds))

    def _mask(self, feeds: Feeds) -> Array | None:
        return feeds[self.asked.mask] if self.asked.mask is not None else None

    def _finite(self, outputs: Mapping[str, Array], feeds: Feeds) -> Arrays:
        """What is read; raises BadRequest if there is no such part, NotSupported if it is empty or not finite."""
        parts = picked(outputs, self.asked.reads, self._mask(feeds))
        for position, array in enumerate(parts):
            if not array.size or not np.isfinite(array.astype(np.float64)).all():
                found = f"{array.shape} with others or none"
                raise NotSupported(f"output {position}: expected finite numbers, found {found}")
        return parts

    def check_memory(self, sizes: Sequence[Sizes]) -> None:
        """Raises NotSupported if a proof in double that was asked for needs too much."""
        if self.asked.double:
            check_memory(self.graph, {symbol: max(each[symbol] for each in sizes) for symbol in sizes[0]})

    def failure(self) -> ForeignError:
        dims = ",".join(f"{symbol}=SIZE" for symbol in free_dimensions(self.graph))
        if isinstance(self.unsupported, NoReference):
            return self.unsupported
        if self.unsupported:
            hint = f"--dims {dims} sets other sizes" if dims else ""
            return type(self.unsupported)(str(self.unsupported), hint)
        if " that is stale, " in self.reason:
            return BadRequest(self.reason)
        if alone := self._alone():
            reason = f"expected the file to run at any size that it declares free: {self.reason}"
            return NotDrawn(reason, f"--dims {alone} gives its size")
        ways = "--inputs" + (f" or --dims {dims}" if dims else "")
        return NotDrawn(f"expected the file to run on drawn inputs: {self.reason}", f"{ways} gives others")

    def _alone(self) -> str:
        """`batch=1` if the file runs with that, else nothing."""
        free = {*free_dimensions(self.graph)} - self.asked.dims.keys()
        ones = dict.fromkeys(sorted(first_dimensions(self.graph) & free), 1)
        for family in size_rounds(self.graph, {**self.asked.dims, **ones}) if ones else ():
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
    """Copies: a view would hold the whole output. Raises BadRequest if there is no such part."""
    return [read.of(outputs[read.output], mask).copy() for read in reads] if reads else [*outputs.values()]


def _text(sizes: Sizes) -> str:
    return "drawn at " + (", ".join(f"{name}={size}" for name, size in sizes.items()) or "fixed sizes")
