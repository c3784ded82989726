"""Our networks reach through the ONNX passes what the torch route reaches."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from foreign_networks import proved

from export.compiler.pipeline import rewrite
from export.graph import rewrite as rewrite_in_torch
from export.graph import to_onnx
from export.rewrites import pipeline
from models.catalog import shipped
from models.checkpoint import load


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
def test_both_routes_end_with_the_same_multiplications(depth: int) -> None:
    trained = load(shipped("vitbn"), depth)
    plain, _ = rewrite_in_torch(trained.model, (), ())
    original = ir.from_proto(to_onnx(plain, trained.config, 20))
    rewritten = rewrite(original, sizes={"batch": 1})
    _, steps = rewrite_in_torch(trained.model.double(), pipeline.ALL, ())
    assert rewritten.steps[-1].macs == steps[-1].macs < 0.55 * rewritten.macs
    assert not any(node.op_type == "BatchNormalization" for node in rewritten.model.graph)
    assert proved(original, rewritten.model).error < 1e-13
