"""Makes an `Artifact` of an ONNX file of any origin, which has no manifest.

In: the file. Out: the artifact with its weights, its tensors, and a sample of its answers to given or drawn inputs.
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
from export.compiler.proof.original_file import Original
from export.compiler.proof.rounds import RoundOptions, rounds
from export.compiler.proof.tolerances import TOLERANCES, size_of
from export.publishing.artifact import Artifact, Content, make_artifact
from export.publishing.manifest import Origin, Tensor

if TYPE_CHECKING:
    import onnxruntime as ort

TOLERANCE = 1e-4  # relative to the outputs: processors and batch sizes round differently
NUMPY = {"float": "float32", "double": "float64"}  # ONNX Runtime's names


def foreign_artifact(file: Path, inputs: Path | None = None) -> Artifact:
    """`inputs`: an .npz file with the sample's inputs; None: they are drawn.

    Raises ForeignError for a file that does not run, or that answers the same inputs differently a second time.
    """
    original = Original(file)
    runner, feeds = original.runner, _sample_inputs(original, inputs)
    needed = {value.name: feeds[value.name] for value in runner.session.get_inputs()}
    sample, second = Sample(needed, runner(needed)), runner(needed)
    if any(not np.array_equal(array, second[name], equal_nan=True) for name, array in sample.outputs.items()):
        raise NotSupported(f"{file}: expected equal answers to equal inputs, found others: random numbers or a state")
    contents = {ONNX_FILE: file, **weights_by_place(file)}
    return session_artifact(contents, runner.session, sample, original.dtype, Origin())


def session_artifact(
    contents: Mapping[str, Content], session: ort.InferenceSession, sample: Sample, dtype: str, origin: Origin
) -> Artifact:
    """The artifact of a file that ONNX Runtime has loaded. `dtype`: of the weights."""
    tolerance = {name: _tolerance(array, dtype) for name, array in sample.outputs.items()}
    tensors = _tensors(session.get_inputs()), _tensors(session.get_outputs())
    origin = replace(origin, precision="fp32" if dtype == "float32" else "fp16")
    return make_artifact(contents, sample, tolerance, tensors, origin)


def _tolerance(array: NDArray[np.generic], dtype: str) -> float:
    """Allowed absolute error of an output. `dtype`: of the weights."""
    relative = max(TOLERANCE, TOLERANCES["float16" if array.dtype == np.float16 else dtype])
    return relative * size_of(array)


def _tensors(values: Any) -> dict[str, Tensor]:
    """`values`: inputs or outputs of a session of ONNX Runtime."""
    kinds = {value.name: value.type.removeprefix("tensor(").removesuffix(")") for value in values}
    return {value.name: Tensor(NUMPY.get(kinds[value.name], kinds[value.name]), tuple(value.shape)) for value in values}


def _sample_inputs(original: Original, file: Path | None) -> Feeds:
    """The inputs in `file`, or drawn inputs that the original answers. Raises NotDrawn if it answers none."""
    graph = drawable(original.model)
    from_file = (file, read_inputs(file, graph)) if file else None
    try:
        return next(rounds(original, graph, RoundOptions(inputs=from_file))).feeds
    except NotDrawn as error:
        raise NotDrawn(error.reason, "--inputs FILE.npz gives others") from error
