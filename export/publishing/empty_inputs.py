"""Tries a file on inputs without elements: there some of ONNX Runtime's kernels divide by zero or never end.

In: a version with its sample. Out: the axes of inputs that must not be 0, because ONNX Runtime's process ended. Each
trial runs in a process of its own, for at most `proof.runs.EMPTY_S`. An error is no such end: a client gets its text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from common.sample import Arrays
from export.compiler.errors import NotSupported, ProcessEnded
from export.compiler.proof.runs import Runner, answers_apart
from export.publishing.artifact import Artifact
from export.publishing.manifest import Tensor

MOST_TRIALS = 32  # of a decoder each layer has inputs

Axes = tuple[tuple[str, int], ...]  # of inputs


def never_empty(artifact: Artifact) -> dict[str, list[int]]:
    """Input -> its axes. `artifact`: as `read_version` returns it, of a file that answers its sample."""
    runner, inputs, ended = Runner(artifact.path), artifact.sample.inputs, set[tuple[str, int]]()
    for axes in _trials(artifact.manifest.inputs):
        if not ended.issuperset(axes) and _ends(runner, _without(inputs, axes)):
            ended.update(axes)
    return {name: sorted(axis for each, axis in ended if each == name) for name in inputs if name in dict(ended)}


def as_line(never: Mapping[str, Sequence[int]]) -> str:
    inputs = ", ".join(f"{name} on axis {' or '.join(map(str, axes))}" for name, axes in never.items())
    return f"Without elements ({inputs}) the file ends ONNX Runtime's process: our backend refuses such requests"


def _trials(inputs: Mapping[str, Tensor]) -> list[Axes]:
    """The axes of one free size together, then each axis alone, as a malformed request may have it."""
    free: dict[Hashable, list[tuple[str, int]]] = defaultdict(list)
    for name, form in inputs.items():
        for axis, size in enumerate(form.shape):
            if not isinstance(size, int):
                free[size or (name, axis)].append((name, axis))
    together = [tuple(axes) for axes in free.values()]
    alone = [(each,) for axes in together for each in axes]
    return [*dict.fromkeys([*together, *alone])][:MOST_TRIALS]


def _without(inputs: Arrays, axes: Axes) -> Arrays:
    emptied = dict(inputs)
    for name, axis in axes:
        emptied[name] = np.take(emptied[name], [], axis)
    return emptied


def _ends(runner: Runner, inputs: Arrays) -> bool:
    try:
        answers_apart(runner, inputs)
    except NotSupported as error:
        return isinstance(error, ProcessEnded)
    return False
