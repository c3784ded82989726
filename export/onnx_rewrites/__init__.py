"""Exact rewrites of any ONNX graph, as passes of `onnx_ir`.

In: an `onnx_ir.Model`. Out: a model that multiplies less for the same outputs, or for the parts of them in `reads`:

    rewrite(onnx_ir.load("model.onnx"), reads=["last_hidden_state[:,0]"]).model
"""

from export.onnx_rewrites.absorb_queries import AbsorbQueries
from export.onnx_rewrites.fold_affine import FoldAffine
from export.onnx_rewrites.pipeline import PASSES, Rewritten, Step, rewrite
from export.onnx_rewrites.read_rows import ReadRows

__all__ = ["PASSES", "AbsorbQueries", "FoldAffine", "ReadRows", "Rewritten", "Step", "rewrite"]
