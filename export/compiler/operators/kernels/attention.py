"""Attention of opset 23, in double."""

from __future__ import annotations

import numpy as np
from onnx.reference.op_run import OpRun

from export.compiler.graph.constants import Array


class Attention(OpRun):
    """softmax(scale q k' + mask) v over (batch, heads, tokens, features), or with heads inside the features.

    As in ONNX Runtime, the lowest float32 masks, and a query without a key gives zeros.
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
    ) -> tuple[Array]:
        if {left_window_size, right_window_size} - {None, -1}:
            raise NotImplementedError("expected no window of keys")
        if is_causal or softcap or past_key is not None or past_value is not None or lengths is not None:
            raise NotImplementedError("expected no causal mask, no softcap and no cache")
        joined = q.ndim == 3
        if joined:
            q = _split_heads(q, q_num_heads)
            k, v = (_split_heads(array, kv_num_heads) for array in (k, v))
        k, v = (np.repeat(array, q.shape[1] // array.shape[1], axis=1) for array in (k, v))
        scores = q @ k.swapaxes(2, 3) * (1 / np.sqrt(q.shape[3]) if scale is None else scale)
        if mask is not None:
            seen = mask if mask.dtype == bool else mask > np.finfo(np.float32).min
            scores = scores + np.where(seen, 0.0 if mask.dtype == bool else mask, -np.inf)
        top = scores.max(-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isneginf(top), 0.0, top))
        total = weights.sum(-1, keepdims=True)
        out = weights / np.where(total == 0, 1.0, total) @ v
        return (out.swapaxes(1, 2).reshape(*out.shape[::2], -1) if joined else out,)


def _split_heads(array: Array, heads: int | None) -> Array:
    return array.reshape(*array.shape[:2], heads or 1, -1).swapaxes(1, 2)
