"""Where the cut of unread rows stops is told with the operator and the reason."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import Encoder, export, model, parse

from export.compiler.pipeline import optimise


def stopped(original: ir.Model) -> str:
    return optimise(original, passes=["read-rows"], sizes={"batch": 1, "seq": 24}).steps[0].stopped


def graph(nodes: str) -> ir.Model:
    return parse(
        f"""<ir_version: 8, opset_import: ["": 18]> g
        (float[n, s, 4] x, float[n, 2, 4] two, int64[k] last) => (float y) {{ {nodes} }}""",
        w=np.ones((4, 4), np.float32),
        **{"zero": 0, "one": 1, "ends": [0, 2]},
    )


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (
            "h = MatMul(x, w) f = Flatten<axis = 2>(h) y = Gather<axis = 0>(f, last)",
            "y (Gather): picks at run time of what Flatten f makes; followed are GatherND of pairs (text, row), "
            "Gather of flattened rows at row + length * text, and GatherElements of whole rows",
        ),
        (
            "h = MatMul(x, w) l = Hardmax<axis = 2>(h) y = Gather<axis = 1>(l, zero)",
            "l (Hardmax): the part that is read, 0 of axis 1, is not computed alone: it has no rule",
        ),
        (
            "h = MatMul(x, w) p = Softmax<axis = 1>(h) y = Gather<axis = 1>(p, zero)",
            "p (Softmax): the part that is read, 0 of axis 1, is not computed alone",
        ),
        (
            "h = MatMul(x, w) y = Gather<axis = 1>(h, ends)",
            "y (Gather): picks rows that a short input lacks: "
            "of a free axis only rows of every input are followed, or a single row",
        ),
        (  # of s + 2 rows a short input has no third
            "j = Concat<axis = 1>(two, x) h = MatMul(j, w) y = Gather<axis = 1>(h, ends)",
            "y (Gather): picks rows that a short input lacks: "
            "of a free axis only rows of every input are followed, or a single row",
        ),
        ("y = MatMul(x, w)", "y (graph output): no multiplying operator computes more than the outputs read"),
    ],
)
def test_the_operator_that_stops_the_cut_is_named(nodes: str, reason: str) -> None:
    assert stopped(graph(nodes)) == reason


def test_places_that_are_computed_whole_stop_nothing() -> None:
    """A Range costs nothing, whatever is read of it."""
    nodes = "l = Shape(x) n = Gather(l, one) r = Range(zero, n, one) u = Unsqueeze(r, ends) f = Cast<to = 1>(u)"
    assert stopped(graph(f"{nodes} h = Add(x, f) m = MatMul(h, w) y = Gather<axis = 1>(m, zero)")) == ""


def test_an_attention_that_reads_all_keys_is_named_behind_what_was_cut() -> None:
    assert "(MatMul): for 0 of axis 2 it reads all of " in stopped(model(export(Encoder())))
