"""Removes what an ONNX file may have around its graph: functions, Constants, weights among the inputs, unread nodes.

In: any ONNX model. Out: a model whose nodes are operators, each of them read, and whose constants are initialisers.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes.common import (
    InlinePass,
    LiftConstantsToInitializersPass,
    RemoveInitializersFromInputsPass,
)

from export.compiler.errors import NotSupported
from export.compiler.graph.def_use import remove_unused


def without_functions(model: ir.Model) -> ir.Model:
    """A copy of the model after `inline_functions`."""
    copy = model.clone()
    inline_functions(copy)
    return copy


def inline_functions(model: ir.Model) -> None:
    """Changes the model in place: no functions, Constant nodes and unread nodes, and initialisers that are no inputs.

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
    remove_unused(model)
