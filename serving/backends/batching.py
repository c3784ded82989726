"""Dynamic batching for any engine: requests that fit together run as one batch.

In: an engine and the requests of one `execute` call. Out: each request's outputs, or its error. If a batch fails, its
requests run again one by one, so that an error concerns only the request that causes it.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from common.plurals import counted
from serving.backends.config_check import Tensor

Array = npt.NDArray[Any]
Inputs = Mapping[str, Array]
Outputs = dict[str, Array]


class RunFailed(Exception):
    """The engine cannot compute the outputs of a request. The client gets the message."""


class Engine(Protocol):
    """A loaded model; `inputs` and `outputs` map names to tensors."""

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        pass

    @property
    def outputs(self) -> Mapping[str, Tensor]:
        pass

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Computes the outputs `names`, in this order. Raises RunFailed."""


class Joining(Protocol):
    """Decides which requests run in one batch, and builds the batch."""

    def groups(self, requests: Sequence[Inputs]) -> list[list[int]]:
        """Divides the requests into batches: lists of positions in `requests`."""

    def join(self, requests: Sequence[Inputs]) -> Inputs:
        """Concatenates the inputs of a batch's requests along the batch dimension."""

    def unpad(self, request: Inputs, outputs: Outputs) -> Outputs:
        """Removes what joining added from the request's rows of the batch's outputs."""


class EqualShapes:
    """Batches requests whose shapes differ only in the batch dimension; adds no padding."""

    def groups(self, requests: Sequence[Inputs]) -> list[list[int]]:
        positions_of: dict[Hashable, list[int]] = defaultdict(list)  # shapes without the batch dimension -> requests
        for position, inputs in enumerate(requests):
            shapes = tuple(sorted((name, value.shape[1:]) for name, value in inputs.items()))
            positions_of[shapes].append(position)
        return list(positions_of.values())

    def join(self, requests: Sequence[Inputs]) -> Inputs:
        return {name: np.concatenate([inputs[name] for inputs in requests]) for name in requests[0]}

    def unpad(self, request: Inputs, outputs: Outputs) -> Outputs:
        return outputs


@dataclass(frozen=True)
class Call:
    """A request: its inputs, and the names of the outputs that it asks for."""

    inputs: Inputs
    requested: frozenset[str]

    @property
    def rows(self) -> int:
        """The size of the batch dimension."""
        return max((len(value) for value in self.inputs.values() if value.ndim), default=0)


def answer(
    engine: Engine, outputs: Sequence[str], calls: Sequence[Call], joining: Joining | None
) -> list[Outputs | RunFailed]:
    """Returns the outputs or the error of each call, in the order of the calls.

    outputs: the names of all outputs of the model.
    joining: None for a model without a batch dimension, whose calls run one by one.
    """
    if len(calls) == 1:  # saves the time of grouping
        return list(_answer_group(engine, outputs, calls, joining))
    positions = range(len(calls))
    groups = joining.groups([call.inputs for call in calls]) if joining else [[position] for position in positions]
    answers: dict[int, Outputs | RunFailed] = {}
    for group in groups:
        group_calls = [calls[position] for position in group]
        answers.update(zip(group, _answer_group(engine, outputs, group_calls, joining), strict=True))
    return [answers[position] for position in positions]


def _answer_group(
    engine: Engine, outputs: Sequence[str], calls: Sequence[Call], joining: Joining | None
) -> Sequence[Outputs | RunFailed]:
    try:
        return _run(engine, outputs, calls, joining)
    except (RunFailed, MemoryError) as failure:
        if len(calls) == 1:
            return [failure if isinstance(failure, RunFailed) else RunFailed("expected enough memory")]
        return [answer for call in calls for answer in _answer_group(engine, outputs, [call], joining)]


def _run(engine: Engine, outputs: Sequence[str], calls: Sequence[Call], joining: Joining | None) -> list[Outputs]:
    names = [name for name in outputs if any(name in call.requested for call in calls)]
    if joining is None:
        return [dict(zip(names, engine.run(names, call.inputs), strict=True)) for call in calls]
    inputs = [call.inputs for call in calls]
    arrays = engine.run(names, joining.join(inputs) if len(calls) > 1 else inputs[0])
    rows = [call.rows for call in calls]
    for name, array in zip(names, arrays, strict=True):
        if len(array) != sum(rows):
            raise RunFailed(f"output '{name}' has {counted(len(array), 'row')} for a batch of {sum(rows)}")
    if len(calls) == 1:  # a lone request was not padded
        return [dict(zip(names, arrays, strict=True))]
    ends = [*accumulate(rows)][:-1]
    parts = {name: np.split(array, ends) for name, array in zip(names, arrays, strict=True)}  # an array a call
    return [
        joining.unpad(call.inputs, {name: part[i] for name, part in parts.items() if name in call.requested})
        for i, call in enumerate(calls)
    ]
