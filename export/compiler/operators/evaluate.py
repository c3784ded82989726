"""Runs a graph in double on onnx's reference and our own kernels.

In: an `onnx_ir` graph of any float dtype and its inputs. Out: its outputs. Initialisers, constants and Casts to a float
become float64, too. Memory holds one weight and the values that a later node reads.
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

# The proof asks every node again, with other inputs. A node that changes needs another runner, and no pass changes
# which inputs a node has.
RUNNERS: WeakKeyDictionary[ir.Node, ReferenceEvaluator] = WeakKeyDictionary()
SHARED = 256  # runners; networks have fewer kinds of nodes


class UnknownOperator(Exception):
    pass


def evaluate(model: ir.Model, feeds: Mapping[str, Array]) -> list[Array]:
    """Raises UnknownOperator for a node whose kernel is missing or fails."""
    graph = model.graph
    values: dict[ir.Value, Array] = {value: _double(feeds[value.name or ""]) for value in graph.inputs}
    readers = {value: len(value.uses()) for node in graph for value in node.outputs}
    readers |= {value: len(value.uses()) for value in graph.inputs}
    for output in graph.outputs:
        readers[output] = readers.get(output, 0) + 1
    for node in graph:
        values |= evaluate_node(node, values)
        for value in node.inputs:
            if value in values:
                readers[value] -= 1
                if not readers[value]:
                    del values[value]
    return [_given(values, output) for output in graph.outputs]


def evaluate_node(node: ir.Node, values: Mapping[ir.Value, Array]) -> dict[ir.Value, Array]:
    if node.op_type == "Loop" and node.domain == "":
        return _loop(node, values)
    if node.op_type == "If" and node.domain == "":
        return _branch(node, values)
    if node.op_type == "Cast" and node.domain == "" and ir.DataType(node.attributes["to"].as_int()) in FLOATS:
        return {node.outputs[0]: _given(values, node.inputs[0]).astype(np.float64)}
    read = stored if node.op_type == "Gather" else constant  # of a table only the rows that it picks become doubles
    feeds = {
        f"in{position}": _given(values, value, read) for position, value in enumerate(node.inputs) if value is not None
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
    """Of a Loop that ends by its condition and hands on values, but collects none."""
    body = node.attributes["body"].as_graph()
    limit, first, *given = node.inputs
    if limit is not None or first is None or len(body.outputs) != 1 + len(given):
        raise UnknownOperator(f"Loop ({node.outputs[0].name}): expected a condition, and values that it hands on")
    held = [_given(values, value) for value in given]
    more, count = bool(values[first].all()), 0
    while more:
        inside: dict[ir.Value, Array] = dict(zip(body.inputs, [np.array(count), np.array(True), *held], strict=True))
        for each in body:
            inside |= evaluate_node(each, ChainMap(inside, dict(values)))
        again, *held = (inside[value] if value in inside else values[value] for value in body.outputs)
        more, count = bool(again.all()), count + 1
    return dict(zip(node.outputs, held, strict=True))


def _branch(node: ir.Node, values: Mapping[ir.Value, Array]) -> dict[ir.Value, Array]:
    name = "then_branch" if _given(values, node.inputs[0]).all() else "else_branch"
    graph, inside = node.attributes[name].as_graph(), dict[ir.Value, Array]()
    for each in graph:
        inside |= evaluate_node(each, ChainMap(inside, dict(values)))
    return {made: _given(inside, value) for made, value in zip(node.outputs, graph.outputs, strict=True)}


def _runner(node: ir.Node) -> ReferenceEvaluator:
    proto = serialize_node(node)
    for field in ("name", "doc_string", "metadata_props"):
        proto.ClearField(field)
    del proto.input[:], proto.output[:]  # serialised without the empty ones at their ends
    proto.input.extend(f"in{position}" if value is not None else "" for position, value in enumerate(node.inputs))
    proto.output.extend(f"out{position}" if output.name else "" for position, output in enumerate(node.outputs))
    _widen(proto, node)
    versions = dict(node.graph.opset_imports) if node.graph is not None else {"": onnx.defs.onnx_opset_version()}
    return _shared_runner(proto.SerializeToString(), tuple(versions.items()))


@lru_cache(SHARED)
def _shared_runner(node: bytes, versions: tuple[tuple[str, int], ...]) -> ReferenceEvaluator:
    """Of all nodes that differ in their values alone: a runner costs as much as ten runs of it."""
    proto = onnx.NodeProto.FromString(node)
    inputs, outputs = (
        [onnx.helper.make_empty_tensor_value_info(name) for name in names if name]
        for names in (proto.input, proto.output)
    )
    graph = onnx.helper.make_graph([proto], "node", inputs, outputs)
    return ReferenceEvaluator(graph, opsets=dict(versions), new_ops=KERNELS)


def _widen(proto: onnx.NodeProto, node: ir.Node) -> None:
    """A number that a pass computed is a double until the file is written: here a tensor, for a kernel of ours."""
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


def _given(
    values: Mapping[ir.Value, Array],
    value: ir.Value | None,
    read: Callable[[ir.Value | None], Array | None] = constant,
) -> Array:
    """Computed, or a constant."""
    array = values[value] if value is not None and value in values else read(value)
    if array is None:
        raise UnknownOperator(f"{value.name if value else ''}: expected a constant, found none")
    return array


def _double(array: Any) -> Array:
    given = np.asarray(array)
    return given.astype(np.float64, copy=False) if np.issubdtype(given.dtype, np.floating) else given
