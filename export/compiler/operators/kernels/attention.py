"""Attention of opset 23, in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

from export.compiler.graph.constants import Array


class Attention(OpRun):
    """softmax(scale q k' + mask) v of (batch, heads, tokens, features) or (batch, tokens, heads * features).

    As in ONNX Runtime, the lowest float32 in a mask hides a key, and a query that sees no key answers 0. The other
    outputs are all keys and all values, past tokens first.
    """

    def _run(
        self,
        q: Array,
        k: Array,
        v: Array,
        mask: Array | None = None,
        past_key: Array | None = None,
        past_value: Array | None = None,
        lengths: Array | None = None,
        is_causal: int | None = None,
        kv_num_heads: int | None = None,
        q_num_heads: int | None = None,
        qk_matmul_output_mode: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        softmax_precision: int | None = None,
        left_window_size: int | None = None,
        right_window_size: int | None = None,
    ) -> tuple[Array, ...]:
        if {left_window_size, right_window_size} - {None, -1} or any(self.output[3:]):
            raise NotImplementedError("expected no window of keys and no scores among its outputs")
        heads_in_features = q.ndim == 3
        if heads_in_features:
            q = _split_heads(q, q_num_heads)
            k, v = (_split_heads(array, kv_num_heads) for array in (k, v))
        past = 0
        if past_key is not None and past_value is not None:
            past = past_key.shape[2]
            k, v = np.concatenate([past_key, k], 2), np.concatenate([past_value, v], 2)
        keys, values = (np.repeat(array, q.shape[1] // array.shape[1], axis=1) for array in (k, v))
        scores = q @ keys.swapaxes(2, 3) * (1 / np.sqrt(q.shape[3]) if scale is None else scale)
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        if mask is not None:
            is_visible = mask if mask.dtype == bool else mask > np.finfo(np.float32).min
            scores = scores + np.where(is_visible, 0.0 if mask.dtype == bool else mask, -np.inf)
        scores = np.where(_visible_keys(scores.shape, past, lengths, bool(is_causal)), scores, -np.inf)
        top = scores.max(-1, keepdims=True, initial=-np.inf)
        weights = np.exp(scores - np.where(np.isneginf(top), 0.0, top))
        total = weights.sum(-1, keepdims=True)
        out = weights / np.where(total == 0, 1.0, total) @ values
        return (out.swapaxes(1, 2).reshape(*out.shape[:3:2], -1) if heads_in_features else out, k, v)


def _visible_keys(shape: tuple[int, ...], past: int, lengths: Array | None, causal: bool) -> NDArray[np.bool_]:
    """Which keys each query may see, apart from the mask. Broadcasts to `shape`, (batch, heads, queries, keys).

    past: the number of past keys. lengths: for each row of the batch the number of its keys, padding left out.
    """
    keys, queries = np.arange(shape[3]), np.arange(shape[2])[:, None]
    key_counts = np.full((1, 1, 1, 1), shape[3]) if lengths is None else lengths.reshape(-1, 1, 1, 1)
    offset = past if lengths is None else key_counts - shape[2]
    return (keys < key_counts) & ((keys <= queries + offset) | (not causal))


def _split_heads(array: Array, heads: int | None) -> Array:
    """(batch, tokens, heads * features) -> (batch, heads, tokens, features)"""
    return array.reshape(*array.shape[:2], heads or 1, -1).swapaxes(1, 2)
