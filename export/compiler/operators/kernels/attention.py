"""Attention of opset 23 and later, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_attention

from export.compiler.graph.constants import Array


class Attention(OpRun):
    """onnx's kernel, but with a softmax in float64. As in ONNX Runtime, the lowest float32 in a mask hides a key."""

    def _run(
        self, q: Array, k: Array, v: Array, mask: Array | None = None, *others: Array | None, **attributes: Any
    ) -> tuple[Array, ...]:
        library: Any = op_attention.Attention_23(self.onnx_node, self.run_params)
        if mask is not None and mask.dtype != bool:
            mask = np.where(mask > np.finfo(np.float32).min, mask, -np.inf)
        answers: tuple[Array, ...] = library._run(q, k, v, mask, *others, **attributes | {"softmax_precision": None})
        return answers
