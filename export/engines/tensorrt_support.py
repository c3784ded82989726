"""Prepares an ONNX graph for TensorRT's parser.

In: an ONNX graph, uint8 images -> float32 logits. Out: the same with one input of Shape moved.
"""

from __future__ import annotations

import onnx
from onnx import shape_inference

from export.errors import ExportError


class UnsupportedGraph(ExportError):
    pass


def prepare(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Reads the batch size after the images' Cast: TensorRT accepts uint8 only as input of Cast.

    Raises UnsupportedGraph.
    """
    prepared = onnx.ModelProto()
    prepared.CopyFrom(proto)
    graph = prepared.graph
    for image in graph.input:
        casts = [node for node in graph.node if node.op_type == "Cast" and image.name in node.input]
        asking = [node for node in graph.node if node.op_type == "Shape" and image.name in node.input]
        if casts and asking:
            for node in asking:
                node.input[0] = casts[0].output[0]
            nodes = [casts[0], *(node for node in graph.node if node is not casts[0])]  # before the Shape nodes
            del graph.node[:]
            graph.node.extend(nodes)
    try:
        onnx.checker.check_model(prepared, full_check=True)
    except (onnx.checker.ValidationError, shape_inference.InferenceError) as error:
        raise UnsupportedGraph(f"ONNX: expected a valid graph, found {' '.join(str(error).split())}") from error
    return prepared


def element_types(proto: onnx.ModelProto) -> dict[str, int]:
    """Tensor name -> element type for the whole graph; 0 where inference fails."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.value_info[:]  # the conversion to float16 leaves stale types
    graph = shape_inference.infer_shapes(bare).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input, *graph.output)}
    return types | {tensor.name: tensor.data_type for tensor in graph.initializer}
