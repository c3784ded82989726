from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import parse, session_of, written

from export.compiler.proof import unify_dimension_names

FEATURES, TOKENS, TEXTS = 8, 6, 3
NAMED = {"ids": "texts, tokens", "kinds": "texts, tokens", "shown": "texts, tokens"}
UNNAMED = {"ids": "a, b", "kinds": "c, d", "shown": "e, f"}
EMBEDDED = "word = Gather(words, ids) kind = Gather(words, kinds) x = Add(word, kind)"
PLACED = """size = Shape<start = 1, end = 2>(ids) row = Slice(table, zero, size, zero) here = Gather(words, ids)
    word = Add(here, row) kind = Gather(words, kinds) x = Add(word, kind)"""


def network(axes: dict[str, str], embedded: str) -> ir.Model:
    """An attention over tokens of ids and kinds, of which `shown` hides some; the first token is read."""
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((FEATURES, FEATURES)).astype(np.float32) for name in ("wq", "wk", "wv")}
    tables = {name: rng.standard_normal((64, FEATURES)).astype(np.float32) for name in ("words", "table")}
    inputs = ", ".join(f"int64[{dims}] {name}" for name, dims in axes.items())
    return parse(
        f"""<ir_version: 8, opset_import: ["": 18]> g ({inputs}) => (float[n, 8] y, bool[n, 8] high) {{
            {embedded}
            q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) t = Transpose<perm = [0, 2, 1]>(k) s = MatMul(q, t)
            number = Cast<to = 1>(shown) less = Sub(number, unit) far = Mul(less, large) bias = Unsqueeze(far, one)
            seen = Add(s, bias) p = Softmax(seen) o = MatMul(p, v) y = Gather<axis = 1>(o, first)
            high = Greater(y, unit) }}""",
        **weights,
        **tables,
        zero=[0],
        one=[1],
        first=0,
        unit=np.float32(1),
        large=np.float32(1e9),
    )


@pytest.mark.parametrize(("embedded", "shared"), [(EMBEDDED, True), (PLACED, False)])
def test_axes_of_other_names_are_cut_as_those_of_one_name(
    embedded: str, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that places a single token of ids otherwise than as many as there are kinds keeps its names."""
    unnamed = network(UNNAMED, embedded)
    costs = [written(network(axes, embedded), tmp_path).rewritten for axes in (NAMED, UNNAMED)]
    assert costs[0].steps[-1].macs < costs[0].macs
    assert (costs[1].steps[-1].macs == costs[0].steps[-1].macs) is shared
    assert differing(unnamed, costs[1].model) == 0
    if not shared:
        monkeypatch.setattr(unify_dimension_names, "_alike", lambda *answers: True)
        assert differing(unnamed, written(unnamed, tmp_path).rewritten.model) > 0


def differing(before: ir.Model, after: ir.Model) -> int:
    """Of calls that `before` answers, the number that `after` answers otherwise: each axis of each input may be 1."""
    rng, original, rewritten = np.random.default_rng(0), session_of(before), session_of(after)
    count, answered = 0, 0
    for sizes in product(*[(1, size) for size in (TEXTS, TOKENS)] * len(UNNAMED)):
        pairs = zip(UNNAMED, sizes[::2], sizes[1::2], strict=True)
        feeds = {name: rng.integers(name == "shown", 2, shape) for name, *shape in pairs}
        try:
            expected, _ = original.run(None, feeds)
        except Exception:  # sizes that do not fit together
            continue
        answered += 1
        try:
            found, _ = rewritten.run(None, feeds)
        except Exception:
            count += 1
            continue
        count += found.shape != expected.shape or not np.allclose(found, expected, atol=1e-5)
    assert answered > 4
    return count
