"""ONNX graphs from their text, as the ONNX specification writes it."""

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

HEAD = '<ir_version: 9, opset_import: ["": 20]> '


def parsed(text: str, **initializers: Any) -> onnx.ModelProto:
    """A text without a head gets HEAD."""
    proto = onnx.parser.parse_model(text if text.lstrip().startswith("<") else HEAD + text)
    for name, array in initializers.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return proto
