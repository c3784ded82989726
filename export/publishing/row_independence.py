"""Proves that a network answers each row of a batch independently, so that a server may join requests into a batch.

In: a network of another origin with its sample. Out: the largest error; or NotJoined, which says why requests must run
apart. The rows of the sample, and drawn requests of one to three rows, are answered together and alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from common.sample import Arrays, Sample
from export.compiler.errors import ForeignError, NotSupported
from export.compiler.graph.shapes import bound_sizes
from export.compiler.pipeline import drawable
from export.compiler.proof.inputs import draw, first_dimensions
from export.compiler.proof.original import Original
from export.compiler.proof.runner import Runner
from export.compiler.proof.tolerances import is_finite, relative_error

DRAWN = (1, 2, 3)  # rows of a request


class NotJoined(Exception):
    """A server must not join requests. The message says why."""


def prove_rows(original: Original, sample: Sample, tolerances: Mapping[str, float]) -> float:
    """The largest error of an output between requests alone and together.

    Errors and `tolerances` are relative to the size of the output. Raises NotJoined.
    """
    if _takes_unequal(original.runner, sample):
        raise NotJoined("the inputs of a request may differ in their rows")
    answered = [*_answered(original.runner, _requests(original, sample))]
    if len(answered) < 2:
        raise NotJoined("expected answers to two requests, found fewer")
    requests, alone = zip(*answered, strict=True)
    try:
        batch = {name: np.concatenate([request[name] for request in requests]) for name in sample.inputs}
        together = original.runner(batch)
    except NotSupported as reason:
        raise NotJoined(f"requests together have no answer: {reason}") from reason
    rows = [len(next(iter(request.values()))) for request in requests]
    return max(
        _error(name, rows, [answers[name] for answers in alone], together[name], tolerance)
        for name, tolerance in tolerances.items()
    )


def _takes_unequal(runner: Runner, sample: Sample) -> bool:
    """Whether the inputs of a request may differ in their numbers of rows, such as 2 texts and 3 pictures.

    Tries that if the names of their first axes differ.
    """
    axes = {value.name: value.shape[0] for value in runner.session.get_inputs()}
    rows = {axis: 2 + index for index, axis in enumerate(dict.fromkeys(axes.values()))}  # a single row would broadcast
    if len(rows) < 2:
        return False
    try:
        runner({name: np.resize(array, (rows[axes[name]], *array.shape[1:])) for name, array in sample.inputs.items()})
    except NotSupported:
        return False
    return True


def _requests(original: Original, sample: Sample) -> Iterator[Arrays]:
    """Single rows of the sample, then drawn requests."""
    for row in range(min(map(len, sample.inputs.values()))):
        yield {name: array[row : row + 1] for name, array in sample.inputs.items()}
    try:
        graph = drawable(original.model)
        sizes = bound_sizes(graph, sample.inputs)
        for rows in DRAWN:
            drawn = draw(graph, sizes | dict.fromkeys(first_dimensions(graph), rows), seed=rows)
            yield {name: drawn[name] for name in sample.inputs}
    except ForeignError:  # no inputs can be drawn; the sample's rows must do
        return


def _answered(runner: Runner, requests: Iterator[Arrays]) -> Iterator[tuple[Arrays, Arrays]]:
    """Requests with their answers; skips requests that fail, or whose answers are not finite."""
    for request in requests:
        try:
            answers = runner(request)
        except NotSupported:
            continue
        if all(map(is_finite, answers.values())):
            yield request, answers


def _error(
    name: str,
    rows: Sequence[int],
    alone: Sequence[NDArray[np.generic]],
    together: NDArray[np.generic],
    tolerance: float,
) -> float:
    """The error of an output, relative to its size. `rows`: of each request. Raises NotJoined above `tolerance`."""
    shapes = [(count, *together.shape[1:]) for count in rows]
    if len(together) != sum(rows) or shapes != [answer.shape for answer in alone]:
        raise NotJoined(f"{name} has the shape {together.shape} for {sum(rows)} rows, {alone[0].shape} for {rows[0]}")
    error = relative_error(np.concatenate(alone), together) if together.size else 0.0
    if not error <= tolerance:  # NaN too
        raise NotJoined(f"{name} is off by {error:.1e} of its size beside other requests (at most {tolerance:g})")
    return error
