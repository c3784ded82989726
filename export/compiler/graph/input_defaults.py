"""Inputs with a default: initialisers that stand among the inputs, too.

In: a model. Out: the same with plain inputs, so that no pass takes a default for a constant; `value.meta[DEFAULT]`
keeps it. `restore_defaults` undoes this.
"""

from __future__ import annotations

import onnx_ir as ir

DEFAULT = "vitbn.default"

LEAST_IR_VERSION = 4  # older files list every weight among the inputs, and ONNX Runtime lets nobody set it


def split_defaults(model: ir.Model) -> None:
    """If every weight stands among the inputs, as older exporters write it, they stay weights."""
    both = [value for value in model.graph.inputs if value.is_initializer()]
    if model.ir_version < LEAST_IR_VERSION or len(both) == len(model.graph.initializers):
        return
    for value in both:
        value.meta[DEFAULT] = value.const_value
        del model.graph.initializers[value.name or ""]
        value.const_value = None


def restore_defaults(model: ir.Model) -> None:
    for value in model.graph.inputs:
        if (tensor := default(value)) is not None and not value.is_initializer():
            value.const_value = tensor
            model.graph.register_initializer(value)


def default(value: ir.Value) -> ir.TensorProtocol | None:
    tensor: ir.TensorProtocol | None = value.meta.get(DEFAULT)
    return tensor


def fixed_inputs(model: ir.Model) -> list[str]:
    """Names of inputs with a default that the passes take for constants."""
    settable = model.ir_version >= LEAST_IR_VERSION
    return [str(value.name) for value in model.graph.inputs if settable and value.is_initializer()]
