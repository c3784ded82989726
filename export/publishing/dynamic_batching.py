"""Decides which requests to a network of another origin a server may join into a batch.

In: an artifact with its sample. Out: the artifact, whose manifest allows to join requests of equal shapes, and those of
different lengths if `vitbn rewrite --packed MASK` wrote the file; lines that say what is allowed, and why not. The
proof for different lengths runs the server's own code on drawn requests: for each length a text without padding, and a
padded batch of two texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common.sample import Arrays, Sample
from export.compiler.errors import ForeignError, NotSupported
from export.compiler.proof.original import Original
from export.compiler.proof.runner import Runner
from export.compiler.proof.tolerances import largest_error, size_of
from export.publishing.artifact import Artifact
from export.publishing.manifest import Manifest, Tensor
from export.publishing.new_config import has_free_rows
from export.publishing.row_independence import NotJoined, prove_rows
from serving.backends.batching import Array, Call, Inputs, RunFailed, answer
from serving.backends.config_check import Tensor as Served
from serving.backends.length_padding import LengthPadding

LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 160)  # tokens of drawn requests; a file need not take all lengths


@dataclass(frozen=True)
class Joined:
    """A proof that requests of different lengths may run together.

    `error`: the largest difference of an output from that of the request alone, relative to the size of the output; at
    most `tolerance`. `requests`: how many were compared.
    """

    lengths: LengthPadding
    error: float
    tolerance: float
    requests: int

    def __str__(self) -> str:
        sizes = f"{self.error:.1e} of the answers' size (at most {self.tolerance:g})"
        return f"{self.requests} requests beside each alone, {sizes}"


def prove_joining(artifact: Artifact) -> tuple[Artifact, list[str]]:
    """The artifact, whose origin says which requests a server may join; and lines about that for its publisher.

    Networks that clients can ask for classes, and networks without a free batch dimension, stay as they are.
    """
    manifest, sample = artifact.manifest, artifact.sample
    if manifest.config is not None or not has_free_rows(manifest):
        return artifact, []
    try:
        error = prove_rows(Original(artifact.path), sample, _tolerances(manifest, sample))
    except NotJoined as reason:
        return artifact.with_origin(joined_rows=False), [f"Requests run apart: {reason}"]
    artifact = artifact.with_origin(joined_rows=True)
    lines = [f"Requests of equal shapes run together: answers differ by {error:.1e} of their size from those alone"]
    if artifact.origin.packed is None:
        return artifact, lines
    try:
        proved = prove_joined(artifact, artifact.origin.packed)
    except NotJoined as reason:
        return artifact, [*lines, f"Requests of different lengths run apart: {reason}"]
    artifact = artifact.with_origin(joined_lengths=proved.lengths.to_json())
    return artifact, [f"Requests of different lengths run together: {proved}"]


def prove_joined(artifact: Artifact, mask: str) -> Joined:
    """Tries padding after the texts, then padding before them. `mask`: the input that masks padding.

    Raises NotJoined.
    """
    manifest, sample = artifact.manifest, artifact.sample
    reasons = []
    engine = _Engine(artifact.path)
    for left in (False, True):
        lengths = _lengths(manifest.inputs, manifest.outputs, sample, mask, left)
        requests, alone = _alone(engine, _drawn(sample, lengths))
        tolerances = _tolerances(manifest, sample)
        try:
            error = _compare(engine, lengths, requests, alone, tolerances)
        except NotJoined as reason:
            reasons.append(f"with padding {'before' if left else 'behind'} a text {reason}")
            continue
        return Joined(lengths, error, max(tolerances.values()), len(requests))
    raise NotJoined("; ".join(reasons))


class _Engine:
    """A file in ONNX Runtime, as the engine that the server's code for joining calls."""

    inputs: Mapping[str, Served] = {}
    outputs: Mapping[str, Served] = {}

    def __init__(self, path: Path) -> None:
        self.runner = Runner(path)

    def run(self, names: Sequence[str], feeds: Inputs) -> list[Array]:
        try:
            outputs = self.runner(dict(feeds))
        except ForeignError as error:
            raise RunFailed(str(error)) from error
        return [outputs[name] for name in names]


def _lengths(
    inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], sample: Sample, mask: str, left: bool
) -> LengthPadding:
    """The inputs and outputs with a token axis: their second axis is free, and as long as the mask in the sample.

    `left`: whether padding comes before the text. Raises NotJoined for another mask, and for whole numbers without a
    token axis: they may be positions counted from the padded end.
    """
    if mask not in inputs or len(inputs[mask].shape) != 2 or isinstance(inputs[mask].shape[1], int):
        raise NotJoined(f"expected a mask {mask!r} of (texts, tokens), both free, found none")
    tokens = sample.inputs[mask].shape[1]
    token_inputs = _with_token_axis(inputs, sample.inputs, tokens)
    token_outputs = _with_token_axis(outputs, sample.outputs, tokens)
    others = [name for name, tensor in inputs.items() if name not in token_inputs and "int" in tensor.dtype.lower()]
    if others:
        raise NotJoined(f"{others[0]} may count tokens from a text's end: whole numbers without an axis of tokens")
    shapes = [*(inputs[name].shape for name in token_inputs), *(outputs[name].shape for name in token_outputs)]
    features = sum(math.prod(size for size in shape[2:] if isinstance(size, int)) for shape in shapes)
    return LengthPadding(mask, token_inputs, token_outputs, left, features)


def _with_token_axis(tensors: Mapping[str, Tensor], arrays: Arrays, tokens: int) -> tuple[str, ...]:
    free = [name for name, tensor in tensors.items() if len(tensor.shape) > 1 and not isinstance(tensor.shape[1], int)]
    return tuple(name for name in free if arrays[name].shape[1] == tokens)


def _drawn(sample: Sample, lengths: LengthPadding) -> list[Arrays]:
    """Requests of tokens that are drawn from the sample: for each length a text, and a batch of two padded texts."""
    rng = np.random.default_rng(0)
    requests = []
    for tokens in LENGTHS:
        ends = np.arange(tokens) < rng.integers(1, tokens + 1, (2, 1))
        for shown in (np.ones((1, tokens), bool), ends[:, ::-1] if lengths.left else ends):
            request = {name: rng.choice(array, len(shown)) for name, array in sample.inputs.items()}
            request |= {name: rng.choice(request[name], tokens, axis=1) for name in lengths.inputs}
            request[lengths.mask] = shown.astype(sample.inputs[lengths.mask].dtype)
            requests.append(request)
    return requests


def _alone(engine: _Engine, drawn: Sequence[Arrays]) -> tuple[list[Arrays], list[Arrays]]:
    """The requests that the file answers, and its answers. Raises NotJoined if they are of fewer than two shapes."""
    requests, answers, reasons = [], [], []
    for request in drawn:
        try:
            answers.append(engine.runner(request))
        except NotSupported as reason:
            reasons.append(reason)
            continue
        requests.append(request)
    if len({_shape(request) for request in requests}) < 2:
        raise NotJoined(f"expected answers to texts of two lengths, found: {reasons[0] if reasons else 'none'}")
    return requests, answers


def _shape(request: Arrays) -> Any:
    """The shapes of the inputs without the batch dimension."""
    return tuple(array.shape[1:] for array in request.values())


def _tolerances(manifest: Manifest, sample: Sample) -> dict[str, float]:
    """Allowed error of each output, relative to its size. Raises NotJoined for outputs without a tolerance."""
    relative = {}
    for name, array in sample.outputs.items():
        if (tolerance := manifest.sample_tolerance[name]) is None:
            raise NotJoined(f"{name}: expected a tolerance of its numbers, found none")
        relative[name] = tolerance / size_of(array)
    return relative


def _compare(
    engine: _Engine,
    lengths: LengthPadding,
    requests: Sequence[Arrays],
    alone: Sequence[Arrays],
    tolerances: Mapping[str, float],
) -> float:
    """Joins all requests with the server's code; the largest error of an output against `alone`, the answers alone.

    Errors and tolerances are relative to the size of the output. Raises NotJoined.
    """
    calls = [Call(request, frozenset(tolerances)) for request in requests]
    largest = 0.0
    for outputs, expected in zip(answer(engine, [*tolerances], calls, lengths), alone, strict=True):
        if isinstance(outputs, RunFailed):
            raise NotJoined(str(outputs))
        for name, tolerance in tolerances.items():
            shapes = outputs[name].shape, expected[name].shape
            if shapes[0] != shapes[1]:
                raise NotJoined(f"{name} has the shape {shapes[0]}, alone {shapes[1]}")
            error = largest_error(expected[name], outputs[name])
            size = max(size_of(answers[name]) for answers in alone)
            if not error <= tolerance * size:  # NaN too
                raise NotJoined(f"{name} is off by {error / size:.1e} of its size (at most {tolerance:g})")
            largest = max(largest, error / size)
    return largest
