"""Draws attention masks of every kind: right and left padding, holes, a single token, no padding, all padding.

In: the number of texts and of tokens, or a graph. Out: an int64 array (texts, tokens) of 0 and 1, whose texts get the
kinds in turn; or inputs of the graph with such a mask.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.compiler.errors import BadRequest
from export.compiler.proof.inputs import Feeds, draw, free_dimensions

SIZES = ((6, 8), (6, 5), (12, 33))  # texts and tokens
TEXTS, TOKENS = 3, 5  # of trial runs; neither is 1, which broadcasts
Mask = NDArray[np.int64]
Kind = Callable[[int, np.random.Generator], Mask]


def _right(length: int, rng: np.random.Generator) -> Mask:
    return (np.arange(length) < rng.integers(1, length + 1)).astype(np.int64)


def _left(length: int, rng: np.random.Generator) -> Mask:
    return _right(length, rng)[::-1]


def _holes(length: int, rng: np.random.Generator) -> Mask:
    mask = rng.integers(0, 2, length)
    mask[rng.integers(0, length)] = 1
    return mask


def _one_token(length: int, rng: np.random.Generator) -> Mask:
    mask = np.zeros(length, np.int64)
    mask[rng.integers(0, length)] = 1
    return mask


def _all_tokens(length: int, rng: np.random.Generator) -> Mask:
    return np.ones(length, np.int64)


def _no_token(length: int, rng: np.random.Generator) -> Mask:
    return np.zeros(length, np.int64)


SEEN: tuple[Kind, ...] = (_right, _left, _holes, _one_token, _all_tokens)  # these show a token at least
KINDS: tuple[Kind, ...] = (*SEEN, _no_token)
FULL: tuple[Kind, ...] = (_all_tokens,)

MANY = (96, 8)  # texts and tokens: too many for a single part of a packed graph


def draw_masks(texts: int, length: int, seed: int = 0, kinds: tuple[Kind, ...] = KINDS) -> Mask:
    """A mask (texts, length) whose texts get `kinds` in turn, from a kind that `seed` chooses."""
    rng = np.random.default_rng(seed)
    return np.stack([kinds[(number + seed) % len(kinds)](length, rng) for number in range(texts)])


def mask_input(graph: ir.Graph, name: str) -> ir.Value:
    """The input with this name. Raises BadRequest if there is none."""
    mask = next((value for value in graph.inputs if value.name == name), None)
    if mask is None:
        names = ", ".join(str(value.name) for value in graph.inputs)
        raise BadRequest(f"packed: expected one of the inputs {names}, found {name!r}")
    return mask


def possible_masks(graph: ir.Graph) -> list[str]:
    """The names of inputs that have "mask" in their name and two free axes."""
    named = [value for value in graph.inputs if "mask" in str(value.name).lower() and value.shape is not None]
    return [str(value.name) for value in named if [isinstance(dim, int) for dim in value.shape or ()] == [False, False]]


def masked_feeds(graph: ir.Graph, mask: ir.Value) -> list[Feeds]:
    """Inputs for each of SIZES, with masks of every kind; none for a mask without two free axes.

    Raises NotSupported for inputs that are no numbers.
    """
    dims = [dim.value for dim in mask.shape.dims if isinstance(dim, ir.SymbolicDim)] if mask.shape is not None else []
    drawn: list[Feeds] = []
    for seed, (texts, length) in enumerate(SIZES if len(dims) == 2 else ()):
        sizes = dict.fromkeys(free_dimensions(graph), length) | {str(dims[0]): texts, str(dims[1]): length}
        feeds, name = draw(graph, sizes, seed), str(mask.name)
        drawn.append(feeds | {name: draw_masks(texts, length, seed).astype(feeds[name].dtype)})
    return drawn
