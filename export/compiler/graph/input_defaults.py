"""Inputs with a default value. An ONNX file writes such an input as an initialiser that is among the inputs too.

`split_defaults` moves each default into `value.meta[DEFAULT]`, so that no pass takes it for a constant.
`restore_defaults` puts the defaults back.
"""

from __future__ import annotations

import onnx_ir as ir

DEFAULT = "vitbn.default"

LEAST_IR_VERSION = 4  # older files list all weights among the inputs, and ONNX Runtime lets no caller set them


def split_defaults(model: ir.Model) -> None:
    """In place. If all weights are among the inputs, as older exporters write them, they stay weights."""
    inputs_with_default = [value for value in model.graph.inputs if value.is_initializer()]
    if model.ir_version < LEAST_IR_VERSION or len(inputs_with_default) == len(model.graph.initializers):
        return
    for value in inputs_with_default:
        value.meta[DEFAULT] = value.const_value
        del model.graph.initializers[value.name or ""]
        value.const_value = None


def restore_defaults(model: ir.Model) -> None:
    """Undoes `split_defaults`, in place."""
    for value in model.graph.inputs:
        if (tensor := default(value)) is not None and not value.is_initializer():
            value.const_value = tensor
            model.graph.register_initializer(value)


def default(value: ir.Value) -> ir.TensorProtocol | None:
    """The default of an input after `split_defaults`; None of an input without a default."""
    tensor: ir.TensorProtocol | None = value.meta.get(DEFAULT)
    return tensor


def fixed_inputs(model: ir.Model) -> list[str]:
    """Names of the inputs whose default the passes take for a constant, because all weights are inputs."""
    if model.ir_version < LEAST_IR_VERSION:
        return []
    return [str(value.name) for value in model.graph.inputs if value.is_initializer()]
