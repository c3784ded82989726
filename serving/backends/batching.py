"""Joins requests of equal shapes, for any engine.

After a failed joint run, its requests run alone.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from serving.backends.contract import Tensor

Array = npt.NDArray[Any]
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
        """Raises RunFailed."""


@dataclass(frozen=True)
class Call:
    inputs: Mapping[str, Array]
    requested: frozenset[str]

    @property
    def rows(self) -> int:
        return max((len(value) for value in self.inputs.values() if value.ndim), default=0)

    @property
    def shapes(self) -> Hashable:
        return tuple(sorted((name, value.shape[1:]) for name, value in self.inputs.items()))


def answer(engine: Engine, outputs: Sequence[str], calls: Sequence[Call], batched: bool) -> list[Outputs | RunFailed]:
    """Answers by call; if `batched`, calls that differ only in rows run together."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for position, call in enumerate(calls):
        groups[call.shapes if batched else position].append(position)
    answers: dict[int, Outputs | RunFailed] = {}
    for positions in groups.values():
        together = [calls[position] for position in positions]
        answers.update(zip(positions, _answer_group(engine, outputs, together, batched), strict=True))
    return [answers[position] for position in range(len(calls))]


def _answer_group(
    engine: Engine, outputs: Sequence[str], calls: Sequence[Call], batched: bool
) -> Sequence[Outputs | RunFailed]:
    try:
        return _run(engine, outputs, calls, batched)
    except RunFailed as failure:
        if len(calls) == 1:
            return [failure]
        return [each for call in calls for each in _answer_group(engine, outputs, [call], batched)]


def _run(engine: Engine, outputs: Sequence[str], calls: Sequence[Call], batched: bool) -> list[Outputs]:
    names = [name for name in outputs if any(name in call.requested for call in calls)]
    feeds = calls[0].inputs
    if len(calls) > 1:
        feeds = {name: np.concatenate([call.inputs[name] for call in calls]) for name in feeds}
    values = engine.run(names, feeds)
    rows = [call.rows for call in calls]
    if batched:
        for name, value in zip(names, values, strict=True):
            if len(value) != sum(rows):
                raise RunFailed(f"output '{name}' has {len(value)} rows for a batch of {sum(rows)}")
    ends = np.cumsum(rows)[:-1]
    pieces = [np.split(value, ends) if len(calls) > 1 else [value] for value in values]
    return [
        {name: piece[i] for name, piece in zip(names, pieces, strict=True) if name in call.requested}
        for i, call in enumerate(calls)
    ]
