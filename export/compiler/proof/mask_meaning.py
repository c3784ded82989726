"""Tells whether a boolean mask is true for the tokens that it hides, as PyTorch's key_padding_mask, or that it shows.

In: a file and its mask's name. Out: whether it hides. Trial runs tell: answers stay where hidden tokens change.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from export.compiler.errors import NotSupported
from export.compiler.graph.constants import Array
from export.compiler.graph.node_builder import BOOL
from export.compiler.proof.inputs import draw, free_dimensions
from export.compiler.proof.masks import TEXTS, TOKENS, mask_input
from export.compiler.proof.original_file import Original
from export.compiler.proof.tolerances import alike


def hides_tokens(original: Original, packed: str) -> bool:
    """`packed`: the mask's name. False also for a mask of numbers, and where the file does not answer.

    Raises BadRequest if no input has that name.
    """
    graph = original.model.graph
    mask = mask_input(graph, packed)
    dims = [dim.value for dim in mask.shape or () if isinstance(dim, ir.SymbolicDim)]
    if mask.dtype != BOOL or len(dims) != 2:
        return False
    sizes = dict.fromkeys(free_dimensions(graph), TOKENS) | {str(dims[0]): TEXTS, str(dims[1]): TOKENS}
    is_last = np.broadcast_to(np.arange(TOKENS) > TOKENS // 2, (TEXTS, TOKENS))
    feeds, others = (draw(graph, sizes, seed) | {packed: is_last} for seed in (0, 1))

    def answers_stay(changed: Array) -> bool:
        """Whether no answer for the other tokens depends on the `changed`."""
        tokens = {name for name, array in feeds.items() if array.shape[:2] == is_last.shape} - {packed}
        new = {name: _chosen(changed, others[name], feeds[name]) for name in tokens}
        before, after = original.runner(feeds), original.runner(feeds | new)
        return all(alike(_without(changed, array), _without(changed, after[name])) for name, array in before.items())

    try:
        return answers_stay(is_last) and not answers_stay(~is_last)
    except NotSupported:
        return False


def _chosen(condition: Array, array: Array, other: Array) -> Array:
    """`array` where the condition (texts, tokens) holds, else `other`."""
    return np.where(condition.reshape(*condition.shape, *[1] * (array.ndim - 2)), array, other)


def _without(tokens: Array, array: Array) -> Array:
    """The rows of the other tokens, if the array has a row for each token; else the array."""
    return array[~tokens] if array.shape[:2] == tokens.shape else array
