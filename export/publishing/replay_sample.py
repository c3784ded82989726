"""Runs a version's ONNX file on its sample, before the version is published and whenever it is verified."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from export.compiler.errors import ForeignError
from export.compiler.graph.constants import Array
from export.compiler.proof.runner import Runner
from export.compiler.proof.tolerances import largest_error
from export.errors import PublishError
from export.publishing.artifact import Artifact


def replay(artifact: Artifact, shown: Path) -> None:
    """`artifact`: of files on disk. `shown`: the path of the ONNX file in errors, where the user knows it.

    Raises PublishError if the file does not run, or answers its sample differently than when the sample was made.
    """
    manifest, sample = artifact.manifest, artifact.sample
    try:
        answers = Runner(artifact.path)(sample.inputs)
    except ForeignError as error:
        raise PublishError(f"{shown}: {error}") from error
    if not answers or answers.keys() != sample.outputs.keys() or answers.keys() != manifest.sample_tolerance.keys():
        raise PublishError(f"{shown}: expected the outputs {', '.join(sample.outputs)}, found {', '.join(answers)}")
    for name, array in answers.items():
        expected = sample.outputs[name]
        if (array.shape, array.dtype) != (expected.shape, expected.dtype):
            wanted = f"{expected.dtype} {expected.shape}"
            raise PublishError(f"{shown}: {name}: expected {wanted} for the sample, found {array.dtype} {array.shape}")
        _compare(f"{shown}: {name}", expected, array, manifest.sample_tolerance[name])


def _compare(what: str, expected: Array, actual: Array, tolerance: float | None) -> None:
    """`tolerance`: absolute; None: only the class must be the same. Raises PublishError."""
    error = largest_error(expected, actual)
    if tolerance is None and not np.isfinite(error):  # argmax returns a class even for NaN
        raise PublishError(f"{what}: expected finite numbers for the sample, found an error of {error}")
    if tolerance is None and (actual.argmax(-1) != expected.argmax(-1)).any():
        raise PublishError(f"{what}: expected class {expected.argmax(-1)} for the sample, found {actual.argmax(-1)}")
    if tolerance is not None and not error <= tolerance:  # NaN fails too
        raise PublishError(f"{what}: expected the sample's answer to {tolerance:.2e}, found an error of {error:.2e}")
