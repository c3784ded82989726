"""Brings a graph into the form that the passes read.

In: any ONNX model. Out: the same outputs from a graph

- with inferred shapes, where every free dimension has a name;
- without functions, and without Constant, Identity, Dropout and other nodes that change nothing;
- with initialisers for values, and branches for Ifs, that do not depend on the inputs;
- in which several forms of one operator are written in one: a fill or repetition as Expand, CastLike as Cast,
  an Einsum as MatMul, a sum over its number of terms as ReduceMean, a sum of masked values as Where.

Raises NotSupported with the node's name: for an opset, operator or body that the passes do not read (see
`_unsupported`), for random operators, and for Dropout and BatchNormalization in training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from export.compiler.errors import NotSupported
from export.compiler.graph.attributes import attribute_int, axes_of, optional
from export.compiler.graph.constants import UNROUNDED, Constants, constant, integers, is_constant, number
from export.compiler.graph.def_use import is_read, made_by, remove_unused
from export.compiler.graph.inline_functions import inline_functions
from export.compiler.graph.name_dimensions import name_free_dimensions
from export.compiler.graph.node_builder import nodes_before
from export.compiler.graph.symbolic_shapes import Shapes, product, same
from export.compiler.operators.evaluate import UnknownOperator, evaluate_node
from export.compiler.operators.shape_inference import infer
from export.compiler.operators.table import RESHAPES, UNLISTED, Trait, operator_of
from export.compiler.passes.count_from_the_end import count_from_the_end
from export.compiler.passes.drop_no_ops import drop_no_ops
from export.compiler.passes.drop_unread import drop_unread
from export.compiler.passes.inline_branches import inline_branches
from export.compiler.passes.replace_einsums import replace_einsums
from export.compiler.passes.replace_scatters import replace_scatters
from export.compiler.passes.replace_selects import replace_selects
from export.compiler.passes.unflatten import unflatten

OLDEST_OPSET, NEWEST_OPSET = 10, 26
LARGEST_FOLDED = 1 << 24  # elements of a node's inputs, if it is to be folded
LARGEST_GROWTH = 1 << 16  # elements by which folding a node may enlarge the file
SMALL = 256  # elements; a larger constant is a weight
NARROW = frozenset(  # dtypes of 16 bits and fewer
    {kind for kind in ir.DataType if kind.name.startswith(("INT4", "INT8", "UINT4", "UINT8", "FLOAT16", "FLOAT8"))}
)


def prepare(model: ir.Model) -> None:
    """Brings `model` into the form that the module's docstring describes, in place; a second call changes nothing.

    Raises NotSupported.
    """
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
    if replace_einsums(model.graph):
        fold_constants(model)
    _check_norms(model.graph)
    count_from_the_end(model.graph)
    _drop_empty_parts(model.graph)
    drop_no_ops(model.graph)
    replace_scatters(model.graph)
    replace_selects(model.graph)
    _write_means(model.graph)
    _expand_tiles(model.graph)
    remove_unused(model)


def settle(model: ir.Model) -> None:
    """Brings a prepared model that a pass has changed back into the prepared form."""
    drop_unread(model)
    while _fold_constants(model.graph):
        drop_unread(model)
    drop_no_ops(model.graph, RESHAPES)  # other operators are tidy's
    remove_unused(model)


def fold_constants(model: ir.Model) -> None:
    """Folds and infers shapes in turns, as a new constant may give a shape that was unknown."""
    infer(model)
    while _expand_cast_likes(model.graph) or _fold_constants(model.graph) or unflatten(model.graph):
        remove_unused(model)
        infer(model)


def _fold_known(model: ir.Model) -> None:
    """Folds constants alone, in a graph that may have bodies; `fold_constants` would also rewrite operators.

    Shapes need not fit together yet: an If has the shape of a branch that its condition will not choose. Values before
    it have their shapes.
    """
    name_free_dimensions(model.graph)
    folded = True
    while folded:
        with suppress(NotSupported):
            infer(model)
        folded = _fold_constants(model.graph)
        remove_unused(model)


def _check_opset(graph: ir.Graph) -> None:
    version = graph.opset_imports.get("", 0)
    if not OLDEST_OPSET <= version <= NEWEST_OPSET:
        hint = f"onnx.version_converter makes opset {OLDEST_OPSET} of it" if 0 < version < OLDEST_OPSET else ""
        raise NotSupported(f"opset: expected {OLDEST_OPSET} to {NEWEST_OPSET}, found {version}", hint)


def _check_supported(graph: ir.Graph) -> None:
    """Raises NotSupported with the name of the first unsupported node."""
    for node in graph:
        reason = next(_unsupported(node), None)
        if reason:
            name = node.name or (node.outputs[0].name if node.outputs else "")
            raise NotSupported(f"node {name!r}: {reason}")


def _unsupported(node: ir.Node) -> Iterator[str]:
    """The reasons why the passes do not read a node."""
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
    """Raises NotSupported for a BatchNormalization in training.

    Only after constants are folded: TorchScript standardises a convolution's weights by such a node.
    """
    for node in graph:
        if made_by(node.outputs[0], "BatchNormalization") is None:
            continue
        if any(output.name for output in node.outputs[1:]) or attribute_int(node, "training_mode", 0):
            training = f"statistics among its outputs (opset {graph.opset_imports['']})"
            raise NotSupported(f"node {node.name!r}: expected BatchNormalization in inference, found {training}")


def _drop_dropout(graph: ir.Graph) -> None:
    """Drops Dropouts, except those whose mask is read."""
    for node in list(graph):
        if node.op_type == "Dropout" and not any(map(is_read, node.outputs[1:])):
            training = optional(node, 2)
            if training is not None and integers(training) != [0]:
                raise NotSupported(f"node {node.name!r}: expected Dropout in inference, found a training mode")
            _replace_node(graph, node, ir.node("Identity", node.inputs[:1]))


def _drop_statistics(graph: ir.Graph) -> None:
    """Drops the nodes that compute mean and variance for a BatchNormalization in training, which ignores these inputs.

    TorchScript computes them of a convolution's weights, in steps too large to fold.
    """
    for node in graph:
        if made_by(node.outputs[0], "BatchNormalization") is None or any(map(is_read, node.outputs[1:])):
            continue
        if attribute_int(node, "training_mode", 0):
            for position in (3, 4):
                node.replace_input_with(position, node.inputs[1])  # any value of their shape


def _drop_identities(graph: ir.Graph) -> None:
    """Drops Identities. An output that copies another output, an input or a weight keeps its Identity, for its name."""
    for node in list(graph):
        value = node.inputs[0] if node.op_type == "Identity" and not node.domain else None
        is_output = node.outputs[0].is_graph_output()
        if value is None or (is_output and (value.producer() is None or value.is_graph_output())):
            continue
        copy = node.outputs[0]
        value.type = value.type or copy.type
        ir.convenience.replace_all_uses_with(copy, value, replace_graph_outputs=True)
        if is_output:
            value.name = copy.name
        graph.remove(node, safe=True)


def _expand_fills(graph: ir.Graph) -> None:
    """Writes ConstantOfShape as Expand of a number: symbolic inference follows only that."""
    constants = Constants(graph)
    for node in list(graph):
        if node.op_type == "ConstantOfShape" and not node.domain:
            attribute = node.attributes.get("value")
            fill = attribute.as_tensor().numpy() if attribute is not None else np.zeros(1, np.float32)
            _replace_node(graph, node, ir.node("Expand", [constants.add(fill.reshape(()), "fill"), node.inputs[0]]))


def _expand_cast_likes(graph: ir.Graph) -> bool:
    """Writes CastLike as Cast: symbolic inference follows only that. Returns whether the graph changed."""
    changed = False
    for node in list(graph):
        dtype = node.inputs[1].dtype if node.op_type == "CastLike" and node.inputs[1] is not None else None
        if dtype is not None:
            _replace_node(graph, node, ir.node("Cast", node.inputs[:1], {**node.attributes, "to": dtype}))
            changed = True
    return changed


def _drop_empty_parts(graph: ir.Graph) -> None:
    """Drops inputs of a Concat that have no elements.

    Phi-3 concatenates the features that it rotates, which may be all, with the others.
    """
    shapes = Shapes(graph)
    for node in list(graph):
        output = node.outputs[0]
        if made_by(output, "Concat") is None or output.shape is None or output.is_graph_output():
            continue
        axis = attribute_int(node, "axis", 0) % len(output.shape)
        operands = [value for value in node.inputs if value is not None]
        parts = [value for value in operands if value.shape is None or not same(shapes.dims(value)[axis], 0)]
        if 0 < len(parts) < len(operands):
            _replace_node(graph, node, ir.node("Concat", parts, {"axis": axis}))


def _expand_tiles(graph: ir.Graph) -> None:
    """Writes a Tile that repeats axes of size 1 as an Expand, of which the passes can compute parts."""
    shapes = Shapes(graph)
    for node in list(graph):
        source, out = node.inputs[0] if node.inputs else None, node.outputs[0]
        if node.op_type != "Tile" or node.domain or source is None or None in (source.shape, out.shape):
            continue
        sizes = zip(shapes.dims(source), shapes.dims(out), strict=True)
        if all(same(before, 1) or same(before, after) for before, after in sizes):
            _replace_node(graph, node, ir.node("Expand", [source, node.inputs[1]]))


def _write_means(graph: ir.Graph) -> None:
    """Writes a sum that is divided by the number of its terms as ReduceMean: JAX computes means so."""
    shapes, constants = Shapes(graph), Constants(graph)
    for node in list(graph):
        out = node.outputs[0]
        total = made_by(node.inputs[0], "ReduceSum") if made_by(out, "Div") else None
        source, axes = (total.inputs[0], axes_of(total)) if total is not None else (None, None)
        if total is None or source is None or source.shape is None or not axes or out.dtype not in UNROUNDED:
            continue
        dims = shapes.dims(source)
        if number(node.inputs[1]) == product([dims[axis] for axis in axes]) and out.shape == total.outputs[0].shape:
            mean = nodes_before(constants, node).mean(source, axes, attribute_int(total, "keepdims", 1))
            constants.replace(out, mean, "divided")


def _replace_node(graph: ir.Graph, old: ir.Node, new: ir.Node) -> None:
    """Puts `new` in the place of `old`; its output gets name, shape and type of the first output of `old`."""
    ir.convenience.replace_nodes_and_values(graph, old, [old], [new], old.outputs[:1], new.outputs)


def _fold_constants(graph: ir.Graph) -> bool:
    """Lets readers read an initialiser instead of a node with constant inputs; whether there was such a node."""
    constants, folded = Constants(graph), False
    for node in list(graph):
        outputs = [*filter(is_read, node.outputs)]
        if not outputs or any(value.is_graph_output() for value in outputs):
            continue
        inferred = constant(outputs[0])
        if len(outputs) == 1 and inferred is not None:  # by symbolic inference
            new = constants.add(inferred, outputs[0].name or "constant", outputs[0].dtype)
            ir.convenience.replace_all_uses_with(outputs[0], new)
            folded = True
        elif all(value is None or is_constant(value) for value in node.inputs):
            folded |= _fold(node, outputs, constants)
    return folded


def _fold(node: ir.Node, outputs: list[ir.Value], constants: Constants) -> bool:
    """Evaluates a node with constant inputs. False, and no change, if the file would grow or be quantised otherwise."""
    sizes = {
        value: value.const_value.size for value in node.inputs if value is not None and value.const_value is not None
    }
    if sum(sizes.values()) > LARGEST_FOLDED:  # as a word table that the head transposes: the file would hold it twice
        return False
    try:
        results = evaluate_node(node, {})
    except UnknownOperator:
        return False
    if node.op_type == "DequantizeLinear" and results[outputs[0]].size > 1:
        return False  # ONNX Runtime would quantise the floats of a weight or bias otherwise
    if _grows(node, {value: results[value] for value in outputs}):
        return False
    for value in outputs:
        new = constants.add(results[value], value.name or "constant", value.dtype)
        ir.convenience.replace_all_uses_with(value, new)
    return True


def _grows(node: ir.Node, results: Mapping[ir.Value, NDArray[np.generic]]) -> bool:
    """Whether a fold adds more than LARGEST_GROWTH elements to the file, or writes a narrow weight in more bytes."""
    read = [(value, value.const_value) for value in node.inputs if value is not None and value.const_value is not None]
    freed = [tensor for value, tensor in read if len(value.uses()) == 1]  # other inputs stay in the file
    growth = sum(array.size for array in results.values()) - sum(tensor.size for tensor in freed)
    size = sum(array.size * (value.dtype or ir.DataType.FLOAT).itemsize for value, array in results.items())
    has_narrow_weight = any(tensor.dtype in NARROW and tensor.size > SMALL for _, tensor in read)
    return growth > LARGEST_GROWTH or (has_narrow_weight and size > sum(tensor.nbytes for tensor in freed))
