"""Joins requests for any engine: those of equal shapes, or as another `Joining` says.

After a failed joint run, its requests run alone.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from serving.backends.config_check import Tensor

Array = npt.NDArray[Any]
Inputs = Mapping[str, Array]
Outputs = dict[str, Array]


class RunFailed(Exception):
    """Clients see the message."""


class Engine(Protocol):
    @property
    def inputs(self) -> Mapping[str, Tensor]:
        pass

    @property
    def outputs(self) -> Mapping[str, Tensor]:
        pass

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs `names`, in this order. Raises RunFailed."""


class Joining(Protocol):
    """Which requests run together, and how."""

    def groups(self, requests: Sequence[Inputs]) -> list[list[int]]:
        """Positions of requests that run together."""

    def join(self, requests: Sequence[Inputs]) -> Inputs:
        """A group's inputs as those of one request."""

    def unpad(self, request: Inputs, outputs: Outputs) -> Outputs:
        """A request's outputs, from its rows of the joint outputs."""


class EqualShapes:
    """Requests that differ only in rows."""

    def groups(self, requests: Sequence[Inputs]) -> list[list[int]]:
        like: dict[Hashable, list[int]] = defaultdict(list)
        for position, inputs in enumerate(requests):
            like[tuple(sorted((name, value.shape[1:]) for name, value in inputs.items()))].append(position)
        return list(like.values())

    def join(self, requests: Sequence[Inputs]) -> Inputs:
        return {name: np.concatenate([inputs[name] for inputs in requests]) for name in requests[0]}

    def unpad(self, request: Inputs, outputs: Outputs) -> Outputs:
        return outputs


@dataclass(frozen=True)
class Call:
    inputs: Inputs
    requested: frozenset[str]

    @property
    def rows(self) -> int:
        return max((len(value) for value in self.inputs.values() if value.ndim), default=0)


def answer(
    engine: Engine, outputs: Sequence[str], calls: Sequence[Call], joining: Joining | None
) -> list[Outputs | RunFailed]:
    """The answers in the order of the calls; without `joining`, for a model without batches, every call runs alone."""
    if len(calls) == 1:  # a lone request waits for no grouping
        return list(_answer_group(engine, outputs, calls, joining))
    groups = joining.groups([call.inputs for call in calls]) if joining else [[each] for each in range(len(calls))]
    answers: dict[int, Outputs | RunFailed] = {}
    for positions in groups:
        together = [calls[position] for position in positions]
        answers.update(zip(positions, _answer_group(engine, outputs, together, joining), strict=True))
    return [answers[position] for position in range(len(calls))]


def _answer_group(
    engine: Engine, outputs: Sequence[str], calls: Sequence[Call], joining: Joining | None
) -> Sequence[Outputs | RunFailed]:
    try:
        return _run(engine, outputs, calls, joining)
    except (RunFailed, MemoryError) as failure:
        if len(calls) == 1:
            return [failure if isinstance(failure, RunFailed) else RunFailed("expected enough memory")]
        return [each for call in calls for each in _answer_group(engine, outputs, [call], joining)]


def _run(engine: Engine, outputs: Sequence[str], calls: Sequence[Call], joining: Joining | None) -> list[Outputs]:
    names = [name for name in outputs if any(name in call.requested for call in calls)]
    if joining is None:
        return [dict(zip(names, engine.run(names, call.inputs), strict=True)) for call in calls]
    inputs = [call.inputs for call in calls]
    values = engine.run(names, joining.join(inputs) if len(calls) > 1 else inputs[0])
    rows = [call.rows for call in calls]
    for name, value in zip(names, values, strict=True):
        if len(value) != sum(rows):
            raise RunFailed(f"output '{name}' has {len(value)} rows for a batch of {sum(rows)}")
    if len(calls) == 1:  # nothing was padded
        return [dict(zip(names, values, strict=True))]
    ends = [*accumulate(rows)][:-1]
    pieces = {name: np.split(value, ends) for name, value in zip(names, values, strict=True)}
    return [
        joining.unpad(call.inputs, {name: piece[i] for name, piece in pieces.items() if name in call.requested})
        for i, call in enumerate(calls)
    ]
