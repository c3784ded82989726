"""Runs a graph in float64, with the kernels of onnx's reference implementation and ours.

In: an `onnx_ir` model of any float dtype, and arrays for its inputs. Out: its outputs. Floats become float64: inputs,
initialisers, constants and the results of Casts to a float. Memory holds a single weight at a time, and the values that
a later node reads.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx_ir.serde import serialize_node

from export.compiler.graph.constants import FLOATS, Array, constant, stored
from export.compiler.operators.kernels import KERNELS

# The runner of each node, because the proof runs a node many times. Passes make new nodes instead of changing the
# number of inputs of a node, so a runner stays valid.
RUNNERS: WeakKeyDictionary[ir.Node, ReferenceEvaluator] = WeakKeyDictionary()
SHARED_RUNNERS = 256  # networks have fewer kinds of nodes


class UnknownOperator(Exception):
    """A node has no kernel in float64, or its kernel fails."""


def evaluate(model: ir.Model, feeds: Mapping[str, Array]) -> list[Array]:
    """The outputs in the graph's order. Raises UnknownOperator."""
    graph = model.graph
    values: dict[ir.Value, Array] = {value: _double(feeds[value.name or ""]) for value in graph.inputs}
    reads_left = {value: len(value.uses()) for node in graph for value in node.outputs}
    reads_left |= {value: len(value.uses()) for value in graph.inputs}
    for output in graph.outputs:
        reads_left[output] = reads_left.get(output, 0) + 1
    for node in graph:
        values |= evaluate_node(node, values)
        for value in node.inputs:
            if value in values:
                reads_left[value] -= 1
                if not reads_left[value]:
                    del values[value]
    return [_array(values, output) for output in graph.outputs]


def evaluate_node(node: ir.Node, values: Mapping[ir.Value, Array]) -> dict[ir.Value, Array]:
    """The outputs of a node. values: its inputs that are not constants. Raises UnknownOperator."""
    if node.op_type == "Loop" and node.domain == "":
        return _loop(node, values)
    if node.op_type == "If" and node.domain == "":
        return _branch(node, values)
    if node.op_type == "Cast" and node.domain == "" and ir.DataType(node.attributes["to"].as_int()) in FLOATS:
        return {node.outputs[0]: _array(values, node.inputs[0]).astype(np.float64)}
    read = stored if node.op_type == "Gather" else constant  # only the rows that a Gather picks become float64
    feeds = {
        f"in{position}": _array(values, value, read) for position, value in enumerate(node.inputs) if value is not None
    }
    try:
        if node not in RUNNERS:
            RUNNERS[node] = _runner(node)
        results = RUNNERS[node].run(None, feeds)
    except Exception as error:  # numpy, torch and onnx share no base class
        reason = " ".join(str(error).split())[:200] or "expected an operator with a reference, found none"
        raise UnknownOperator(f"{node.op_type} ({node.outputs[0].name}): {reason}") from error
    named = [output for output in node.outputs if output.name]
    return {output: _double(result) for output, result in zip(named, results, strict=True)}


def _loop(node: ir.Node, values: Mapping[ir.Value, Array]) -> dict[ir.Value, Array]:
    """The outputs of a Loop that ends by its condition. Its state passes from step to step; it has no scan outputs."""
    body = node.attributes["body"].as_graph()
    limit, condition, *initial_state = node.inputs
    if limit is not None or condition is None or len(body.outputs) != 1 + len(initial_state):
        raise UnknownOperator(f"Loop ({node.outputs[0].name}): expected a condition, and values that it hands on")
    state = [_array(values, value) for value in initial_state]
    goes_on, step = bool(values[condition].all()), 0
    while goes_on:
        local: dict[ir.Value, Array] = dict(zip(body.inputs, [np.array(step), np.array(True), *state], strict=True))
        for body_node in body:
            local |= evaluate_node(body_node, ChainMap(local, dict(values)))
        condition_array, *state = (local[value] if value in local else values[value] for value in body.outputs)
        goes_on, step = bool(condition_array.all()), step + 1
    return dict(zip(node.outputs, state, strict=True))


def _branch(node: ir.Node, values: Mapping[ir.Value, Array]) -> dict[ir.Value, Array]:
    """The outputs of an If."""
    name = "then_branch" if _array(values, node.inputs[0]).all() else "else_branch"
    branch, local = node.attributes[name].as_graph(), dict[ir.Value, Array]()
    for branch_node in branch:
        local |= evaluate_node(branch_node, ChainMap(local, dict(values)))
    return {output: _array(local, value) for output, value in zip(node.outputs, branch.outputs, strict=True)}


def _runner(node: ir.Node) -> ReferenceEvaluator:
    """A runner of the node with the inputs in0, in1, … Nodes that differ only in names get the same runner."""
    proto = serialize_node(node)
    for field in ("name", "doc_string", "metadata_props"):
        proto.ClearField(field)
    del proto.input[:], proto.output[:]  # onnx_ir leaves out empty names at the end; a runner needs them
    proto.input.extend(f"in{position}" if value is not None else "" for position, value in enumerate(node.inputs))
    proto.output.extend(f"out{position}" if output.name else "" for position, output in enumerate(node.outputs))
    _widen(proto, node)
    versions = dict(node.graph.opset_imports) if node.graph is not None else {"": onnx.defs.onnx_opset_version()}
    return _shared_runner(proto.SerializeToString(), tuple(versions.items()))


@lru_cache(SHARED_RUNNERS)
def _shared_runner(node: bytes, versions: tuple[tuple[str, int], ...]) -> ReferenceEvaluator:
    """Making a runner takes as long as ten runs of it."""
    proto = onnx.NodeProto.FromString(node)
    inputs, outputs = (
        [onnx.helper.make_empty_tensor_value_info(name) for name in names if name]
        for names in (proto.input, proto.output)
    )
    graph = onnx.helper.make_graph([proto], "node", inputs, outputs)
    return ReferenceEvaluator(graph, opsets=dict(versions), new_ops=KERNELS)


def _widen(proto: onnx.NodeProto, node: ir.Node) -> None:
    """Makes float attributes float64, in place.

    protobuf rounds a number to float32. If a pass computed it in float64, it becomes a tensor, for a kernel of ours.
    """
    if proto.op_type == "ConstantOfShape" and not proto.attribute:  # float32 zeros
        proto.attribute.append(onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(np.zeros(1))))
    narrow = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
    for attribute in proto.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type in narrow:
            array = onnx.numpy_helper.to_array(attribute.t).astype(np.float64)
            attribute.t.CopyFrom(onnx.numpy_helper.from_array(array))
        elif attribute.name == "dtype" and attribute.i in narrow:
            attribute.i = onnx.TensorProto.DOUBLE
        elif attribute.type == onnx.AttributeProto.FLOAT and attribute.f != node.attributes[attribute.name].as_float():
            exact = np.array(node.attributes[attribute.name].as_float())
            attribute.CopyFrom(onnx.helper.make_attribute(attribute.name, onnx.numpy_helper.from_array(exact)))


def _array(
    values: Mapping[ir.Value, Array],
    value: ir.Value | None,
    read: Callable[[ir.Value | None], Array | None] = constant,
) -> Array:
    """The array of a value that was computed, or of a constant. Raises UnknownOperator for other values."""
    array = values[value] if value is not None and value in values else read(value)
    if array is None:
        raise UnknownOperator(f"{value.name if value else ''}: expected a constant, found none")
    return array


def _double(result: Any) -> Array:
    """Floats as float64, other dtypes as they are."""
    array = np.asarray(result)
    return array.astype(np.float64, copy=False) if np.issubdtype(array.dtype, np.floating) else array
