"""Graphs with a mask, written node by node; `nodes` ends them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from foreign_networks import VOCABULARY, parse


def crossed(floor: float = -3e38) -> ir.Model:
    """Rows of another input read tokens, then each other, as a decoder's do; the last is answered. No score is below
    `floor`, as in XGLM.
    """
    rng = np.random.default_rng(0)
    return parse(
        """<ir_version: 8, opset_import: ["": 18]>
        g (int64[batch, seq] input_ids, int64[batch, seq] attention_mask, float[own, rows, 4] read) => (float[n, 4] y)
        {
            x = Gather(table, input_ids) made = MatMul(x, w) keys = Transpose<perm = [0, 2, 1]>(made)
            m = Cast<to = 9>(attention_mask) shown = Unsqueeze(m, one) scores = MatMul(read, keys)
            filled = Where(shown, scores, lowest) sunk = Max(filled, floor) weights = Softmax(sunk)
            taken = MatMul(weights, x) h = Add(taken, read) other = Transpose<perm = [0, 2, 1]>(h)
            alike = MatMul(h, other) p = Softmax(alike) z = MatMul(p, h) y = Gather<axis = 1>(z, last)
        }""",
        table=rng.standard_normal((VOCABULARY, 4)).astype(np.float32),
        w=rng.standard_normal((4, 4)).astype(np.float32),
        lowest=np.array(-1e9, np.float32),
        floor=np.array(floor, np.float32),
        one=np.array([1]),
        last=np.array(-1),
    )


def behind(nodes: str) -> ir.Model:
    """Behind the tokens, 0 where hidden, stands the first one of each text."""
    rng = np.random.default_rng(0)
    return parse(
        f"""<ir_version: 8, opset_import: ["": 18]>
        g (int64[batch, seq] input_ids, int64[batch, seq] attention_mask) => (float y)
        {{
            x = Gather(table, input_ids) made = MatMul(x, w) m = Cast<to = 1>(attention_mask) wide = Unsqueeze(m, two)
            shown = Mul(made, wide) first = Slice(x, zero, one, one) all = Concat<axis = 1>(shown, first) {nodes}
        }}""",
        table=rng.standard_normal((VOCABULARY, 4)).astype(np.float32),
        w=rng.standard_normal((4, 4)).astype(np.float32),
        **{name: np.array([number]) for name, number in (("zero", 0), ("one", 1), ("two", 2), ("end", -2))},
        last=np.array(-1),
    )


def of_heads(more: str = "", rows: str = "Gather<axis = 1>(flat, ends)") -> ir.Model:
    """As DeBERTa computes them: texts and heads as a single axis. The `rows` of queries are picked, or an input."""
    numbers = {"apart": [0, 0, 2, 2], "rest": [-1], "two": [2], "again": [-1, 2, 2], "between": [1, 2], "ends": [0, -1]}
    return parse(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (int64[batch, seq] input_ids, int64[batch, seq] attention_mask{more}) => (float[batch, 2, 2, 2] y)
        {{
            x = Gather(table, input_ids) n = Shape<start = 1>(input_ids) heads = Reshape(x, apart)
            own = Transpose<perm = [0, 2, 1, 3]>(heads) sizes = Concat<axis = 0>(rest, n, two)
            flat = Reshape(own, sizes) rows = {rows} keys = Transpose<perm = [0, 2, 1]>(flat)
            s = MatMul(rows, keys) all = Concat<axis = 0>(again, n) scores = Reshape(s, all)
            m = Cast<to = 9>(attention_mask) shown = Unsqueeze(m, between) f = Where(shown, scores, lowest)
            p = Softmax(f) y = MatMul(p, own)
        }}""",
        table=np.random.default_rng(0).standard_normal((VOCABULARY, 4)).astype(np.float32),
        lowest=np.array(-1e9, np.float32),
        **{name: np.array(number) for name, number in numbers.items()},
    )


def repeated(nodes: str) -> ir.Model:
    """`each`: the sizes to which Expand repeats for each token."""
    rng = np.random.default_rng(0)
    return parse(
        f"""<ir_version: 8, opset_import: ["": 18]>
        g (int64[batch, seq] input_ids, int64[batch, seq] attention_mask) => (float y)
        {{
            x = Gather(table, input_ids) made = MatMul(x, w) keys = Transpose<perm = [0, 2, 1]>(made)
            n = Shape<start = 1>(input_ids) each = Concat<axis = 0>(one, n, one) m = Cast<to = 9>(attention_mask)
            below = Unsqueeze(m, one) beside = Unsqueeze(m, two) floats = Cast<to = 1>(beside) {nodes}
        }}""",
        table=rng.standard_normal((VOCABULARY, 4)).astype(np.float32),
        w=rng.standard_normal((4, 4)).astype(np.float32),
        lowest=np.array(-1e9, np.float32),
        **{name: np.array([number]) for name, number in (("one", 1), ("two", 2))},
    )
