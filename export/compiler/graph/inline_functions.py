"""Removes what an ONNX file may wrap around its graph: functions, Constant nodes and weights among the inputs.

In: any ONNX model. Out: a model whose nodes are operators and whose constants are initialisers.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import (
    InlinePass,
    LiftConstantsToInitializersPass,
    RemoveInitializersFromInputsPass,
)

from export.compiler.errors import NotSupported


def without_functions(model: ir.Model) -> ir.Model:
    """A copy of the model after `inline_functions`."""
    copy = model.clone()
    inline_functions(copy)
    return copy


def inline_functions(model: ir.Model) -> None:
    """Changes the model in place: no functions, no Constant nodes, and initialisers that are not inputs too.

    Raises NotSupported for a function of another opset than the graph's, or with graphs as arguments.
    """
    try:
        InlinePass()(model)
    except ValueError as error:
        raise NotSupported(f"expected functions that can be inlined, found one that cannot: {error}") from error
    RemoveInitializersFromInputsPass()(model)
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    for graph in model.graphs():
        graph.opset_imports.update(model.opset_imports)  # the graphs of branches and loops name no opset
