"""Runs an ONNX file on its sample: of a version before it is published, and whenever it is verified."""

from __future__ import annotations

import numpy as np

from export.compiler.errors import ForeignError
from export.compiler.graph.constants import Array
from export.compiler.proof.runs import Runner
from export.compiler.proof.tolerances import largest_error
from export.errors import PublishError
from export.publishing.artifact import Artifact


def replay(artifact: Artifact) -> None:
    """`artifact`: as `read_version` returns it.

    Raises PublishError for a file that does not run, or that answers its sample otherwise than when it was made.
    """
    manifest, path, sample = artifact.manifest, artifact.path, artifact.sample
    try:
        found = Runner(path)(sample.inputs)
    except ForeignError as error:
        raise PublishError(f"{path.parent}: {error}") from error
    if not found or found.keys() != sample.outputs.keys() or found.keys() != manifest.sample_tolerance.keys():
        raise PublishError(f"{path}: expected the outputs {', '.join(sample.outputs)}, found {', '.join(found)}")
    for name, array in found.items():
        expected = sample.outputs[name]
        if (array.shape, array.dtype) != (expected.shape, expected.dtype):
            wanted = f"{expected.dtype} {expected.shape}"
            raise PublishError(f"{path}: {name}: expected {wanted} for the sample, found {array.dtype} {array.shape}")
        tolerance = manifest.sample_tolerance[name]
        _compare(f"{path}: {name}", expected, array, tolerance)


def _compare(what: str, expected: Array, found: Array, tolerance: float | None) -> None:
    error = largest_error(expected, found)
    if tolerance is None and not np.isfinite(error):  # argmax finds a class even in NaN
        raise PublishError(f"{what}: expected finite numbers for the sample, found an error of {error}")
    if tolerance is None and (found.argmax(-1) != expected.argmax(-1)).any():
        raise PublishError(f"{what}: expected class {expected.argmax(-1)} for the sample, found {found.argmax(-1)}")
    if tolerance is not None and not error <= tolerance:  # NaN fails too
        raise PublishError(f"{what}: expected the sample's answer to {tolerance:.2e}, found an error of {error:.2e}")
