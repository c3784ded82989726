"""Chooses the inputs of the proof: those on which the original gives finite answers.

In: a file, its graph and the reads. Out: `Rounds`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from export.onnx_rewrites.errors import BadRequest, ForeignError
from export.onnx_rewrites.inputs import Feeds, Sizes, bound_sizes, draw, free_dimensions, size_rounds
from export.onnx_rewrites.memory import check_memory
from export.onnx_rewrites.proof import check_finite, double_answers, finite_answers, picked, session
from export.onnx_rewrites.reads import Read

Arrays = list[NDArray[np.generic]]


@dataclass(frozen=True)
class Rounds:
    """`answers` and `doubles` are the parts that are read; `doubles` is empty without a proof in double."""

    feeds: list[Feeds]
    answers: list[Arrays]
    doubles: list[Arrays]
    source: str


@dataclass(frozen=True)
class Asked:
    """`inputs`: the user's own file and its arrays. `dims`: sizes that some networks need."""

    reads: Sequence[Read] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[Path, Feeds] | None = None
    double: bool = False


def find_rounds(
    original: ir.Model, graph: ir.Graph, path: Path, asked: Asked, say: Callable[[str], None] = lambda _: None
) -> Rounds:
    """Tries sizes from small to large, then with --dims fixed.

    Raises BadRequest if nothing runs, NotSupported if the proof in double is impossible.
    """
    runner, reason, unsupported = session(path), "", None
    given = [asked.inputs[1]] if asked.inputs else []
    own = [finite_answers(runner, feeds, asked.reads) for feeds in given]
    for family in chain(size_rounds(graph, asked.dims), [None] if given else []):
        needed = [*family.needed] if family else []
        if asked.double:
            _check_memory(graph, [*needed, *(bound_sizes(graph, feeds) for feeds in given)])
        feeds = [draw(graph, sizes, seed) for seed, sizes in enumerate(needed)]
        try:
            answers = [finite_answers(runner, each, asked.reads) for each in feeds]
        except ForeignError as error:
            reason = reason or str(error)
            continue
        try:
            doubles = _doubles(original, [*feeds, *given], asked, say)
        except ForeignError as error:  # no output for a window larger than the image
            unsupported = unsupported or error
            continue
        found = Rounds([*feeds, *given], [*answers, *own], doubles, _source(needed))
        return _with_more(original, graph, runner, found, family.more if family else [], asked, say)
    dims = ",".join(f"{symbol}=SIZE" for symbol in free_dimensions(graph))
    if unsupported and dims:
        raise type(unsupported)(f"{unsupported}; --dims {dims} sets other sizes") from unsupported
    if unsupported:
        raise unsupported
    what = "--inputs" + (f" or --dims {dims}" if dims else "")
    raise BadRequest(f"expected the file to run on drawn inputs, give {what}: {reason}")


def _check_memory(graph: ir.Graph, sizes: Sequence[Sizes]) -> None:
    check_memory(graph, {symbol: max(each[symbol] for each in sizes) for symbol in sizes[0]})


def _with_more(
    original: ir.Model,
    graph: ir.Graph,
    runner: ort.InferenceSession,
    found: Rounds,
    more: Sequence[Sizes],
    asked: Asked,
    say: Callable[[str], None],
) -> Rounds:
    """Adds those rounds, first, that the original answers: it may need a minimal length, or no batch beside a past."""
    feeds, answers, doubles, ran = [], [], [], []
    for seed, sizes in enumerate(more, start=len(found.feeds)):
        drawn = draw(graph, sizes, seed)
        try:
            answer = finite_answers(runner, drawn, asked.reads)
            exact = _doubles(original, [drawn], asked, say)
        except ForeignError:
            continue
        feeds.append(drawn)
        answers.append(answer)
        doubles += exact
        ran.append(sizes)
    source = "; ".join(filter(None, [found.source, _source(ran), *([str(asked.inputs[0])] if asked.inputs else [])]))
    return Rounds([*feeds, *found.feeds], [*answers, *found.answers], [*doubles, *found.doubles], source)


def _doubles(original: ir.Model, feeds: Sequence[Feeds], asked: Asked, say: Callable[[str], None]) -> list[Arrays]:
    if not asked.double:
        return []
    names, found = [str(value.name) for value in original.graph.outputs], []
    for number, each in enumerate(feeds, start=1):
        say(f"the original in float64, input {number} of {len(feeds)}")
        found.append(picked(names, double_answers(original, [each])[0], asked.reads))
        check_finite(found[-1])
    return found


def _source(rounds: Sequence[Sizes]) -> str:
    sizes = [", ".join(f"{name}={size}" for name, size in chosen.items()) or "fixed" for chosen in rounds]
    return f"drawn at {'; '.join(sizes)}" if sizes else ""
