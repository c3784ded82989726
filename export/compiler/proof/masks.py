"""Masks of every kind: right and left padding, holes, one token, nothing hidden, everything hidden.

In: the number of texts and of tokens. Out: an array of 0 and 1, a kind for each text in turn.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

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


def _whole(length: int, rng: np.random.Generator) -> Mask:
    return np.ones(length, np.int64)


def _empty(length: int, rng: np.random.Generator) -> Mask:
    return np.zeros(length, np.int64)


SEEN: tuple[Kind, ...] = (_right, _left, _holes, _one_token, _whole)  # a token at least
KINDS: tuple[Kind, ...] = (*SEEN, _empty)

MANY = (96, 8)  # texts and tokens: more than a part of a packed graph has


def draw_masks(texts: int, length: int, seed: int = 0, kinds: tuple[Kind, ...] = KINDS) -> Mask:
    """(texts, length)"""
    rng = np.random.default_rng(seed)
    return np.stack([kinds[(number + seed) % len(kinds)](length, rng) for number in range(texts)])
