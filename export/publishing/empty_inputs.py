"""Tries a file on inputs without elements, on which some of ONNX Runtime's kernels divide by zero or never end.

In: a version with its sample. Out: the axes of inputs whose size must not be 0, because the process of ONNX Runtime
crashed or hung. Trials run in separate processes, for at most `proof.runner.EMPTY_S` seconds. An error that ONNX
Runtime reports is harmless: the client gets its text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from common.sample import Arrays
from export.compiler.errors import NotSupported, ProcessEnded
from export.compiler.proof.runner import Runner, answers_apart
from export.publishing.artifact import Artifact
from export.publishing.manifest import Tensor

MOST_TRIALS = 32  # a decoder has inputs for every layer

Axes = tuple[tuple[str, int], ...]  # input and axis


def never_empty(artifact: Artifact) -> dict[str, list[int]]:
    """Input -> its axes that must not have size 0. `artifact`: of files on disk, whose model answers its sample."""
    runner, inputs, fatal = Runner(artifact.path), artifact.sample.inputs, set[tuple[str, int]]()
    for axes in _trials(artifact.manifest.inputs):
        if not fatal.issuperset(axes) and _ends_process(runner, _emptied(inputs, axes)):
            fatal.update(axes)
    by_input = {name: sorted(axis for input_name, axis in fatal if input_name == name) for name in inputs}
    return {name: axes for name, axes in by_input.items() if axes}


def as_line(never_empty: Mapping[str, Sequence[int]]) -> str:
    """What a publisher reads about the inputs that `never_empty` returned."""
    inputs = ", ".join(f"{name} on axis {' or '.join(map(str, axes))}" for name, axes in never_empty.items())
    return f"Without elements ({inputs}) the file ends ONNX Runtime's process: our backend refuses such requests"


def _trials(inputs: Mapping[str, Tensor]) -> list[Axes]:
    """The axes to empty at once: all axes with the same symbol, as a valid request has it; then single axes."""
    by_symbol: dict[Hashable, list[tuple[str, int]]] = defaultdict(list)
    for name, tensor in inputs.items():
        for axis, size in enumerate(tensor.shape):
            if not isinstance(size, int):
                by_symbol[size or (name, axis)].append((name, axis))
    together = [tuple(axes) for axes in by_symbol.values()]
    alone = [(input_axis,) for axes in together for input_axis in axes]
    return [*dict.fromkeys([*together, *alone])][:MOST_TRIALS]


def _emptied(inputs: Arrays, axes: Axes) -> Arrays:
    """The inputs with size 0 on these axes."""
    emptied = dict(inputs)
    for name, axis in axes:
        emptied[name] = np.take(emptied[name], [], axis)
    return emptied


def _ends_process(runner: Runner, inputs: Arrays) -> bool:
    try:
        answers_apart(runner, inputs)
    except NotSupported as error:
        return isinstance(error, ProcessEnded)
    return False
