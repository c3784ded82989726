"""Exact rewrites of any ONNX graph, as passes of `onnx_ir` that compose with others.

In: an `onnx_ir.Model`. Out: a model of the same inputs and outputs that multiplies less. Each pass computes in float64
and casts once; `rewrite` applies them in order, `proof` compares. From a program:

    model = onnx_ir.load("model.onnx")
    rewritten = rewrite(model, reads=["last_hidden_state[:,0]"])
    onnx_ir.save(rewritten.model, "rewritten.onnx")
"""

from export.onnx_rewrites.absorb_queries import AbsorbQueries
from export.onnx_rewrites.fold_affine import FoldAffine
from export.onnx_rewrites.pipeline import PASSES, Rewritten, Step, rewrite
from export.onnx_rewrites.read_rows import ReadRows

__all__ = ["PASSES", "AbsorbQueries", "FoldAffine", "ReadRows", "Rewritten", "Step", "rewrite"]
