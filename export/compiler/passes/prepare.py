"""Brings a graph into the form that the passes read.

In: any ONNX model. Out: the same model without functions, Constant, Identity and Dropout nodes, with initialisers for
values, and branches for Ifs, that do not depend on the inputs, and with inferred shapes. Raises NotSupported for nodes
as in `_unsupported`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from export.compiler.errors import NotSupported
from export.compiler.graph.attributes import attribute_int, optional
from export.compiler.graph.constants import Constants, constant, integers, is_constant
from export.compiler.graph.def_use import is_read, made_by, made_of, remove_unused
from export.compiler.graph.inline_functions import inline_functions
from export.compiler.graph.name_dimensions import name_free_dimensions
from export.compiler.graph.shapes import Shapes, same, same_shape
from export.compiler.operators.evaluate import UnknownOperator, evaluate_node
from export.compiler.operators.shape_inference import infer
from export.compiler.operators.table import RESHAPES, UNLISTED, Trait, operator_of
from export.compiler.passes.drop_no_ops import drop_no_ops
from export.compiler.passes.drop_unread import drop_unread
from export.compiler.passes.fold_size_conditions import fold_size_conditions
from export.compiler.passes.inline_branches import inline_branches
from export.compiler.passes.replace_scatters import replace_scatters
from export.compiler.passes.unflatten import unflatten

OLDEST_OPSET, NEWEST_OPSET = 10, 26
LARGEST_FOLDED = 1 << 24  # elements
LARGEST_GROWTH = 1 << 16  # elements by which folding a node may enlarge the file
SMALL = 256  # elements of a constant that is no weight
NARROW = frozenset(
    {kind for kind in ir.DataType if kind.name.startswith(("INT4", "INT8", "UINT4", "UINT8", "FLOAT16", "FLOAT8"))}
)


def prepare(model: ir.Model) -> None:
    """In place and idempotent. Raises NotSupported."""
    inline_functions(model)
    _check_opset(model.graph)
    inline_branches(model, _fold_known)
    _check_supported(model.graph)
    _drop_dropout(model.graph)
    _drop_statistics(model.graph)
    _expand_fills(model.graph)
    _drop_identities(model.graph)
    name_free_dimensions(model.graph)
    fold_constants(model)
    _check_norms(model.graph)
    replace_scatters(model.graph)
    drop_no_ops(model.graph)
    _drop_empty_parts(model.graph)
    _expand_tiles(model.graph)
    _join_reshapes(model.graph)
    remove_unused(model)


def settle(model: ir.Model, norms_gone: bool = False) -> None:
    """Brings a prepared model that a pass has changed back into the prepared form.

    `norms_gone`: a norm that is folded may have kept rows flat, which become tokens again.
    """
    drop_unread(model)
    while _evaluate(model.graph) or (norms_gone and unflatten(model.graph)):
        drop_unread(model)
    if _join_reshapes(model.graph):
        remove_unused(model)


def fold_constants(model: ir.Model) -> None:
    """Also infers shapes; a known constant may give a shape that was unknown."""
    infer(model)
    while _settle_types(model.graph) or _evaluate(model.graph) or unflatten(model.graph):
        remove_unused(model)
        infer(model)


def _fold_known(model: ir.Model) -> None:
    """Of a graph that may hold others, in which `fold_constants` would change more."""
    name_free_dimensions(model.graph)
    infer(model)
    while _fold_constants(model.graph):
        remove_unused(model)
        infer(model)


def _evaluate(graph: ir.Graph) -> bool:
    return _fold_constants(graph) or fold_size_conditions(graph)


def _check_opset(graph: ir.Graph) -> None:
    version = graph.opset_imports.get("", 0)
    if not OLDEST_OPSET <= version <= NEWEST_OPSET:
        hint = f"onnx.version_converter makes opset {OLDEST_OPSET} of it" if version < OLDEST_OPSET else ""
        raise NotSupported(f"opset: expected {OLDEST_OPSET} to {NEWEST_OPSET}, found {version}", hint)


def _check_supported(graph: ir.Graph) -> None:
    """NotSupported names the first unsupported node."""
    for node in graph:
        reason = next(_unsupported(node), None)
        if reason:
            name = node.name or (node.outputs[0].name if node.outputs else "")
            raise NotSupported(f"node {name!r}: {reason}")


def _unsupported(node: ir.Node) -> Iterator[str]:
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    if any(attr.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attr in node.attributes.values()):
        yield f"expected no graph within the graph, found {operator} with a body"
    if operator_of(node) is UNLISTED and (node.domain or not onnx.defs.has(node.op_type)):
        yield f"expected an operator of ONNX, or of ONNX Runtime that is known, found {operator}"
    if Trait.RANDOM in operator_of(node).traits:
        yield f"expected a graph that always gives the same, found {operator}"
    if node.op_type.startswith(("Sequence", "Optional", "SplitToSequence", "ConcatFromSequence")):
        yield f"expected tensors, found {operator}"


def _check_norms(graph: ir.Graph) -> None:
    """Once constants are folded: TorchScript standardises the weights of a convolution by a BatchNormalization."""
    for node in graph:
        if made_by(node.outputs[0], "BatchNormalization") is None:
            continue
        if any(output.name for output in node.outputs[1:]) or attribute_int(node, "training_mode", 0):
            found = f"statistics among its outputs (opset {graph.opset_imports['']})"
            raise NotSupported(f"node {node.name!r}: expected BatchNormalization in inference, found {found}")


def _drop_dropout(graph: ir.Graph) -> None:
    """A Dropout whose mask is read stays."""
    for node in list(graph):
        if node.op_type == "Dropout" and not any(map(is_read, node.outputs[1:])):
            training = optional(node, 2)
            if training is not None and integers(training) != [0]:
                raise NotSupported(f"node {node.name!r}: expected Dropout in inference, found a training mode")
            _put_instead(graph, node, ir.node("Identity", node.inputs[:1]))


def _drop_statistics(graph: ir.Graph) -> None:
    """A BatchNormalization in training reads the statistics of its input, and none of those that it is given.

    TorchScript gives it computed statistics of a convolution's weights. Their steps are too large to fold.
    """
    for node in graph:
        if made_by(node.outputs[0], "BatchNormalization") is None or any(map(is_read, node.outputs[1:])):
            continue
        if attribute_int(node, "training_mode", 0):
            for position in (3, 4):
                node.replace_input_with(position, node.inputs[1])  # of their shape


def _drop_identities(graph: ir.Graph) -> None:
    """An output that copies another output, an input or a weight keeps its Identity, and so its name."""
    for node in list(graph):
        value = node.inputs[0] if node.op_type == "Identity" and not node.domain else None
        put_out = node.outputs[0].is_graph_output()
        if value is None or (put_out and (value.producer() is None or value.is_graph_output())):
            continue
        copy = node.outputs[0]
        value.type = value.type or copy.type
        ir.convenience.replace_all_uses_with(copy, value, replace_graph_outputs=True)
        if put_out:
            value.name = copy.name
        graph.remove(node, safe=True)


def _expand_fills(graph: ir.Graph) -> None:
    """Writes ConstantOfShape as Expand of a number, the only form that symbolic inference follows."""
    constants = Constants(graph)
    for node in list(graph):
        if node.op_type == "ConstantOfShape" and not node.domain:
            held = node.attributes.get("value")
            fill = held.as_tensor().numpy() if held is not None else np.zeros(1, np.float32)
            _put_instead(graph, node, ir.node("Expand", [constants.add(fill.reshape(()), "fill"), node.inputs[0]]))


def _settle_types(graph: ir.Graph) -> bool:
    """Drops a Cast to the type that its input has, as older exporters write one behind each softmax.

    Writes CastLike, which a file holds that no optimiser has seen, as Cast: symbolic inference follows that.
    """
    settled = False
    for node in list(graph):
        value, out = node.inputs[0] if node.inputs else None, node.outputs[0]
        kind = node.inputs[1].dtype if node.op_type == "CastLike" and node.inputs[1] is not None else None
        if made_by(out, "Cast") is not None and value is not None and value.dtype == out.dtype is not None:
            if not out.is_graph_output():
                ir.convenience.replace_all_uses_with(out, value)
                graph.remove(node, safe=True)
                settled = True
        elif kind is not None:
            _put_instead(graph, node, ir.node("Cast", node.inputs[:1], {**node.attributes, "to": kind}))
            settled = True
    return settled


def _drop_empty_parts(graph: ir.Graph) -> None:
    """Of joined values those without elements: Phi-3 joins the features that it turns, all of them, to the others."""
    shapes = Shapes(graph)
    for node in list(graph):
        joined = node.outputs[0]
        if made_by(joined, "Concat") is None or joined.shape is None or joined.is_graph_output():
            continue
        axis = attribute_int(node, "axis", 0) % len(joined.shape)
        held = [value for value in node.inputs if value is not None]
        parts = [value for value in held if value.shape is None or not same(shapes.dims(value)[axis], 0)]
        if len(parts) == 1:
            ir.convenience.replace_all_uses_with(joined, parts[0])
        elif 1 < len(parts) < len(held):
            _put_instead(graph, node, ir.node("Concat", parts, {"axis": axis}))


def _expand_tiles(graph: ir.Graph) -> None:
    """Writes a Tile that repeats axes of size 1 as an Expand to the same sizes: the passes build the parts of that."""
    shapes = Shapes(graph)
    for node in list(graph):
        source, out = node.inputs[0] if node.inputs else None, node.outputs[0]
        if node.op_type != "Tile" or node.domain or source is None or None in (source.shape, out.shape):
            continue
        sizes = zip(shapes.dims(source), shapes.dims(out), strict=True)
        if all(same(before, 1) or same(before, after) for before, after in sizes):
            _put_instead(graph, node, ir.node("Expand", [source, node.inputs[1]]))


def _put_instead(graph: ir.Graph, old: ir.Node, new: ir.Node) -> None:
    """With the name, shape and type of its first output."""
    ir.convenience.replace_nodes_and_values(graph, old, [old], [new], old.outputs[:1], new.outputs)


def _join_reshapes(graph: ir.Graph) -> bool:
    """Drops reshapes that a later reshape undoes.

    A norm leaves such a pair, (B, N, D) -> (B N, D) and back; between them no box can pick a row of every image.
    """
    shapes, joined = Shapes(graph), False
    for node in graph:
        value = node.outputs[0]
        start = made_of(value, *RESHAPES)
        if value.shape is None or value.is_graph_output():
            continue
        while start is not None and start.shape is not None:
            if same_shape(shapes.dims(start), shapes.dims(value)):
                ir.convenience.replace_all_uses_with(value, start)
                joined = True
                break
            start = made_of(start, *RESHAPES)
    return joined


def _fold_constants(graph: ir.Graph) -> bool:
    constants, folded = Constants(graph), False
    for node in list(graph):
        outputs = [*filter(is_read, node.outputs)]
        if not outputs or any(value.is_graph_output() for value in outputs):
            continue
        known = constant(outputs[0])
        if len(outputs) == 1 and known is not None:  # from symbolic inference
            new = constants.add(known, outputs[0].name or "constant", outputs[0].dtype)
            ir.convenience.replace_all_uses_with(outputs[0], new)
            folded = True
        elif all(value is None or is_constant(value) for value in node.inputs):
            folded |= _fold(node, outputs, constants)
    return folded


def _fold(node: ir.Node, outputs: list[ir.Value], constants: Constants) -> bool:
    sizes = {
        value: value.const_value.size for value in node.inputs if value is not None and value.const_value is not None
    }
    if sum(sizes.values()) > LARGEST_FOLDED:  # the transposed table of a head would be in the file twice
        return False
    try:
        results = evaluate_node(node, {})
    except UnknownOperator:
        return False
    if _grows(node, {value: results[value] for value in outputs}) or _is_quantised(node, results[outputs[0]]):
        return False
    for value in outputs:
        new = constants.add(results[value], value.name or "constant", value.dtype)
        ir.convenience.replace_all_uses_with(value, new)
    return True


def _is_quantised(node: ir.Node, array: NDArray[np.generic]) -> bool:
    """Whether it is a weight or bias of integers: of the floats ONNX Runtime would make other integers."""
    return node.op_type == "DequantizeLinear" and array.size > 1


def _grows(node: ir.Node, results: Mapping[ir.Value, NDArray[np.generic]]) -> bool:
    """Whether the file would hold too many more elements, or a weight of 8 or 16 bits in 32."""
    held = [(value, value.const_value) for value in node.inputs if value is not None and value.const_value is not None]
    freed = [tensor for value, tensor in held if len(value.uses()) == 1]  # others stay in the file
    growth = sum(array.size for array in results.values()) - sum(tensor.size for tensor in freed)
    size = sum(array.size * (value.dtype or ir.DataType.FLOAT).itemsize for value, array in results.items())
    weights = any(tensor.dtype in NARROW and tensor.size > SMALL for _, tensor in held)
    return growth > LARGEST_GROWTH or (weights and size > sum(tensor.nbytes for tensor in freed))
