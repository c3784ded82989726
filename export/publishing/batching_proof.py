"""Decides which requests to a network of another origin a server may join into a batch.

In: an artifact with its sample. Out: the artifact, whose manifest allows to join requests of equal shapes, and those of
different lengths if `vitbn rewrite --packed MASK` wrote the file; lines that say what is allowed, and why not. The
proof joins requests with the server's own code. For equal shapes these are the rows of the sample, and drawn requests
of one to three rows; for different lengths a text without padding of each length, and a padded batch of two texts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, product

import numpy as np

from common.sample import Arrays, Sample
from export.compiler.errors import ForeignError, NotSupported
from export.compiler.graph.constants import Array
from export.compiler.graph.symbolic_shapes import bound_sizes
from export.compiler.pipeline import drawable
from export.compiler.proof.inputs import draw, first_dimensions
from export.compiler.proof.original_file import Original
from export.compiler.proof.runner import Runner
from export.compiler.proof.tolerances import is_finite, relative_error, size_of
from export.publishing.artifact import Artifact
from export.publishing.manifest import Manifest, Tensor
from export.publishing.new_config import has_free_rows
from serving.backends.batching import EqualShapes, Joining
from serving.backends.length_padding import LengthPadding

ROWS = (1, 2, 3)  # of drawn requests of equal shapes
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 160)  # tokens of drawn requests; a file need not take all lengths


class NotJoined(Exception):
    """A server must not join requests. The message says why."""


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
        error = _prove_rows(Original(artifact.path), sample, _tolerances(manifest, sample))
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


def _prove_rows(original: Original, sample: Sample, tolerances: Mapping[str, float]) -> float:
    """The largest error of an output between requests alone and together. Raises NotJoined."""
    if _takes_unequal(original.runner, sample):
        raise NotJoined("the inputs of a request may differ in their rows")
    answered = _answered(original.runner, _rows_and_drawn(original, sample), [])
    answered = [pair for pair in answered if all(map(is_finite, pair[1].values()))]
    if len(answered) < 2:
        raise NotJoined("expected answers to two requests, found fewer")
    return _error(original.runner, EqualShapes(), answered, tolerances)


def _takes_unequal(runner: Runner, sample: Sample) -> bool:
    """Whether the inputs of a request may differ in their numbers of rows, such as 2 texts and 3 pictures.

    Tries that if the names of their first axes differ.
    """
    axes = {value.name: value.shape[0] for value in runner.session.get_inputs()}
    rows = {axis: 2 + index for index, axis in enumerate(dict.fromkeys(axes.values()))}  # a single row would broadcast
    unequal = {name: np.resize(array, (rows[axes[name]], *array.shape[1:])) for name, array in sample.inputs.items()}
    return len(rows) > 1 and bool(_answered(runner, [unequal], []))


def _rows_and_drawn(original: Original, sample: Sample) -> Iterator[Arrays]:
    """Single rows of the sample, then drawn requests."""
    for row in range(min(map(len, sample.inputs.values()))):
        yield {name: array[row : row + 1] for name, array in sample.inputs.items()}
    try:
        graph = drawable(original.model)
        sizes = bound_sizes(graph, sample.inputs)
        for rows in ROWS:
            drawn = draw(graph, sizes | dict.fromkeys(first_dimensions(graph), rows), seed=rows)
            yield {name: drawn[name] for name in sample.inputs}
    except ForeignError:  # no inputs can be drawn; the sample's rows must do
        return


def prove_joined(artifact: Artifact, mask: str) -> Joined:
    """Tries padding after the texts, then padding before them. `mask`: the input that masks padding.

    A boolean mask may be true for visible tokens or for hidden tokens. Raises NotJoined.
    """
    manifest, sample, runner = artifact.manifest, artifact.sample, Runner(artifact.path)
    reasons: list[str] = []
    behind = _lengths(manifest.inputs, manifest.outputs, sample, mask)
    is_boolean = sample.inputs[mask].dtype == bool
    for hides, left in product((False, True) if is_boolean else (False,), (False, True)):
        lengths, failures = replace(behind, left=left, hides=hides), list[NotSupported]()
        answered = _answered(runner, _drawn(sample, lengths), failures)
        if len({tuple(array.shape[1:] for array in request.values()) for request, _ in answered}) < 2:
            raise NotJoined(f"expected answers to texts of two lengths, found: {failures[0] if failures else 'none'}")
        tolerances = _tolerances(manifest, sample)
        try:
            error = _error(runner, lengths, answered, tolerances)
        except NotJoined as reason:
            kind = " that is true in the mask" if hides else ""
            reasons.append(f"with padding{kind} {'before' if left else 'behind'} a text {reason}")
            continue
        return Joined(lengths, error, max(tolerances.values()), len(answered))
    raise NotJoined("; ".join(reasons))


def _lengths(inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], sample: Sample, mask: str) -> LengthPadding:
    """The inputs and outputs with a token axis: their second axis is free, and as long as the mask in the sample.

    Raises NotJoined for another mask, and for whole numbers without a token axis: they may be positions counted from
    the padded end.
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
    return LengthPadding(mask, token_inputs, token_outputs, left=False, features=features)


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
            request[lengths.mask] = (shown != lengths.hides).astype(sample.inputs[lengths.mask].dtype)
            requests.append(request)
    return requests


def _answered(runner: Runner, requests: Iterable[Arrays], failures: list[NotSupported]) -> list[tuple[Arrays, Arrays]]:
    """Requests with their answers, each alone; the errors of the others go to `failures`."""
    answered = []
    for request in requests:
        try:
            answered.append((request, runner(request)))
        except NotSupported as failure:
            failures.append(failure)
    return answered


def _tolerances(manifest: Manifest, sample: Sample) -> dict[str, float]:
    """Allowed error of each output, relative to its size. Raises NotJoined for outputs without a tolerance."""
    relative = {}
    for name, array in sample.outputs.items():
        if (tolerance := manifest.sample_tolerance[name]) is None:
            raise NotJoined(f"{name}: expected a tolerance of its numbers, found none")
        relative[name] = tolerance / size_of(array)
    return relative


def _error(
    runner: Runner, joining: Joining, answered: Sequence[tuple[Arrays, Arrays]], tolerances: Mapping[str, float]
) -> float:
    """Joins the requests of `answered`; the largest error of an output, relative to its size, against those alone.

    Raises NotJoined above the tolerances, which are relative, too.
    """
    requests = [request for request, _ in answered]
    pairs: dict[str, list[tuple[Array, Array]]] = {name: [] for name in tolerances}
    for group in joining.groups(requests):
        try:
            together = runner(dict(joining.join([requests[position] for position in group])))
        except NotSupported as reason:
            raise NotJoined(f"requests together have no answer: {reason}") from reason
        ends = [*accumulate(len(next(iter(requests[position].values()))) for position in group)]
        for position, start, end in zip(group, [0, *ends], ends, strict=False):
            request, alone = answered[position]
            parts = joining.unpad(request, {name: together[name][start:end] for name in tolerances})
            for name, part in parts.items():
                if len(together[name]) != ends[-1] or part.shape != alone[name].shape:
                    raise NotJoined(
                        f"{name} has the shape {part.shape} beside other requests, alone {alone[name].shape}"
                    )
                pairs[name].append((alone[name].ravel(), part.ravel()))
    return max(_largest(name, pairs[name], tolerance) for name, tolerance in tolerances.items())


def _largest(name: str, pairs: Sequence[tuple[Array, Array]], tolerance: float) -> float:
    """The error of an output, whose numbers alone and together are `pairs`. Raises NotJoined above the tolerance."""
    alone, together = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    error = relative_error(alone, together) if alone.size else 0.0
    if not error <= tolerance:  # NaN too
        raise NotJoined(f"{name} is off by {error:.1e} of its size beside other requests (at most {tolerance:g})")
    return error
