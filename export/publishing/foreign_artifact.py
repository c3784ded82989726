"""An ONNX file of any origin -> an `Artifact`.

In: a file, preferably from `vitbn rewrite` with manifest and sample. Out: it with its weights, forms and answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from common.repository import ONNX_FILE
from common.sample import Sample
from export.compiler.errors import NotDrawn, NotSupported
from export.compiler.graph.files import weights_by_place
from export.compiler.pipeline import drawable
from export.compiler.proof.inputs import Feeds, read_inputs
from export.compiler.proof.original import Original
from export.compiler.proof.rounds import Asked, rounds
from export.compiler.proof.tolerances import TOLERANCES, size_of
from export.publishing.artifact import Artifact, Content, make_artifact
from export.publishing.manifest import Origin, Tensor

if TYPE_CHECKING:
    import onnxruntime as ort

TOLERANCE = 1e-4  # relative to the outputs: processors and batch sizes round differently
NUMPY = {"float": "float32", "double": "float64"}  # ONNX Runtime's names


def foreign_artifact(file: Path, inputs: Path | None = None) -> Artifact:
    """Of a file without a manifest. `inputs`: an .npz file for the sample; else they are drawn.

    Raises ForeignError for a file that does not run, or whose answers differ.
    """
    original = Original(file)
    runner, given = original.runner, _inputs(original, inputs)
    needed = {value.name: given[value.name] for value in runner.session.get_inputs()}
    sample, again = Sample(needed, runner(needed)), runner(needed)
    if any(not np.array_equal(array, again[name], equal_nan=True) for name, array in sample.outputs.items()):
        raise NotSupported(f"{file}: expected equal answers to equal inputs, found others: random numbers or a state")
    contents = {ONNX_FILE: file, **weights_by_place(file)}
    return any_artifact(contents, runner.session, sample, original.dtype, Origin())


def any_artifact(
    contents: Mapping[str, Content], runner: ort.InferenceSession, sample: Sample, dtype: str, origin: Origin
) -> Artifact:
    tolerance = {name: _tolerance(array, dtype) for name, array in sample.outputs.items()}
    tensors = _tensors(runner.get_inputs()), _tensors(runner.get_outputs())
    origin = replace(origin, precision="fp32" if dtype == "float32" else "fp16")
    return make_artifact(contents, sample, tolerance, tensors, origin)


def _tolerance(array: NDArray[np.generic], dtype: str) -> float:
    """Absolute, of an output; `dtype`: of the weights."""
    relative = max(TOLERANCE, TOLERANCES["float16" if array.dtype == np.float16 else dtype])
    return relative * size_of(array)


def _tensors(given: Any) -> dict[str, Tensor]:
    kinds = {each.name: each.type.removeprefix("tensor(").removesuffix(")") for each in given}
    return {each.name: Tensor(NUMPY.get(kinds[each.name], kinds[each.name]), tuple(each.shape)) for each in given}


def _inputs(original: Original, file: Path | None) -> Feeds:
    graph = drawable(original.model)
    given = (file, read_inputs(file, graph)) if file else None
    try:
        return next(rounds(original, graph, Asked(inputs=given))).feeds
    except NotDrawn as error:
        raise NotDrawn(error.reason, "--inputs FILE.npz gives others") from error
