"""What all images share is computed once; what differs between them, or mixes them, is not taken for shared."""

from __future__ import annotations

import numpy as np
import pytest
from foreign_networks import parse

from export.compiler.analyses.batch_invariant import batch_invariant
from export.compiler.graph.constants import Array
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.passes.prepare import prepare

CLS = np.random.default_rng(0).standard_normal((1, 1, 4)).astype(np.float32)
CENTRED = CLS - CLS.mean(-1, keepdims=True)
NORM = CENTRED / np.sqrt((CENTRED**2).mean(-1, keepdims=True) + 1e-5)
SHARED = {
    "s = Add(token, cls)": 2 * CLS,
    "s = LayerNormalization<axis = -1>(token, one)": NORM,
    "r = Relu(token) s = Sub(r, token)": np.maximum(-CLS, 0),
    "j = Concat<axis = 1>(token, x) s = Gather<axis = 1>(j, zero)": CLS[:, 0],
}
NOT_SHARED = ["s = Add(token, x)", "s = LayerNormalization<axis = 0>(token, whole)", "s = ReduceSum(token, zero)"]


def made(nodes: str) -> Array | None:
    head = """<ir_version: 8, opset_import: ["": 17]> g (float[n, 1, 4] x) => (float y) {
        n = Shape(x) token = Expand(cls, n)"""
    more = {"zero": np.array(0), "one": np.ones(4, np.float32), "whole": np.ones((3, 1, 4), np.float32)}
    model = parse(f"{head} {nodes} y = Mul(s, x) }}", cls=CLS, **more)
    prepare(model)
    return batch_invariant(
        Shapes(model.graph), next(value for node in model.graph for value in node.outputs if value.name == "s")
    )


@pytest.mark.parametrize("nodes", SHARED)
def test_a_shared_value_has_its_numbers(nodes: str) -> None:
    found = made(nodes)
    assert found is not None
    assert found.shape == SHARED[nodes].shape
    assert np.abs(found - SHARED[nodes]).max() < 1e-6


@pytest.mark.parametrize("nodes", NOT_SHARED)
def test_what_differs_or_mixes_images_is_not_shared(nodes: str) -> None:
    assert made(nodes) is None
