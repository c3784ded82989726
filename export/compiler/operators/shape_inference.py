"""Infers the shapes and dtypes of all values, in place.

The library onnx_shape_inference does this. This file corrects its answers where a free axis may be shorter than the
library assumes, and adds operators that the library does not know; size_arithmetic.py corrects its sums of sizes. In:
a graph with a symbol for each free dimension of its inputs. The names that the file gives to the dimensions of other
values are ignored: they may be wrong.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest

import onnx_ir as ir
from onnx_shape_inference import SYM_DATA_KEY, ShapeInferenceContext, infer_symbolic_shapes, registry

from export.compiler.errors import NotSupported
from export.compiler.graph.attributes import attribute_int, factor_axes, optional
from export.compiler.graph.constants import integers
from export.compiler.graph.symbolic_shapes import FAR, WHOLE_NUMBERS, Dim, agree, least, number, product, same, slices
from export.compiler.operators import size_arithmetic
from export.compiler.operators.table import BROADCASTING

Inference = Callable[[ShapeInferenceContext, ir.Node], None]


def infer_new(model: ir.Model) -> None:
    """As `infer`, but only for nodes whose outputs lack a shape or dtype, and for nodes that read their integers."""
    new = {node for node in model.graph if any(value.shape is None or value.dtype is None for value in node.outputs)}
    if not new:
        return
    context = ShapeInferenceContext(model.opset_imports, policy="refine")
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    dims = {dim for value in values if value.shape is not None for dim in value.shape.dims}
    context.reserve_symbol_names({name for dim in dims if isinstance(dim, ir.SymbolicDim) for name in _symbols(dim)})
    for value in values:
        if elements := elements_of(value):
            context.set_symbolic_value(value, elements)
    new_integers: set[ir.Value | None] = set()
    for node in model.graph:
        if node not in new and new_integers.isdisjoint(node.inputs):
            continue
        function = registry.get(node.domain, node.op_type, context.get_opset_version(node.domain))
        if function is None:  # the library inlines the operator's function, or does not know the operator
            infer(model)
            return
        for value in node.outputs:
            value.metadata_props.pop(SYM_DATA_KEY, None)
            value.const_value = None
        with _as_refusal():
            function(context, node)
        new_integers |= {value for value in node.outputs if value.dtype in WHOLE_NUMBERS}


def elements_of(value: ir.Value) -> list[Dim]:
    """The elements of a vector of integers that are known as numbers or sizes; an empty list for other values."""
    elements: list[int | str] = json.loads(value.metadata_props.get(SYM_DATA_KEY, "[]"))
    return [element if isinstance(element, int) else ir.SymbolicDim(element) for element in elements]


def _symbols(dim: ir.SymbolicDim) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", str(dim)))


@contextmanager
def _as_refusal() -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # the base class of the library's errors
        raise NotSupported(f"shapes: expected a graph that fits together, found {error}") from error


def infer(model: ir.Model) -> None:
    """Sets the shape and dtype of every value, in place, and the elements of vectors of known sizes.

    Raises NotSupported for a graph whose shapes contradict each other.
    """
    given = {id(value) for value in (*model.graph.inputs, *model.graph.initializers.values())}
    for node in model.graph:
        for value in node.outputs:
            if id(value) not in given:
                value.shape = None
                value.const_value = None
            value.metadata_props.pop(SYM_DATA_KEY, None)
    logging.getLogger("onnx_shape_inference").setLevel(logging.ERROR)
    with _as_refusal():
        infer_symbolic_shapes(model, warn_on_missing=False, adopt_declared_symbols=False)


def _slice(context: ShapeInferenceContext, node: ir.Node) -> None:
    """[:, :512] of a free axis has up to 512 rows, and the library says 512. [:, -1:] has 1 row; it says any number.

    [:, :3] of N + 3 tokens has 3 rows. [:, -3:3] has none of few or many tokens, but some of 4.
    """
    source, out = node.inputs[0], node.outputs[0]
    if source is None or source.shape is None or out.shape is None:
        return
    pairs = zip(source.shape.dims, out.shape.dims, strict=True)
    dims = [context.new_symbolic_dim() if _may_be_shorter(before, after) else after for before, after in pairs]
    dims = _with_free_starts(context, node, source.shape.dims, dims)
    for axis, (start, end, step) in (slices(node, len(dims)) or {}).items():
        before = number(source.shape[axis])
        if not isinstance(before, ir.SymbolicDim):
            continue
        if start == 0 and end >= FAR and step == 1:
            dims[axis] = before
            continue
        sizes = [max(least(before), 1), FAR, *(abs(bound) + more for bound in (start, end) for more in (0, 1))]
        counts = {len(range(size)[slice(start, end, step)]) for size in sizes if sizes[0] <= size <= FAR}
        if len(counts) == 1:
            dims[axis] = counts.pop()
        elif isinstance(dims[axis], int):
            dims[axis] = context.new_symbolic_dim()
    out.shape = ir.Shape(dims)


def _with_free_starts(
    context: ShapeInferenceContext, node: ir.Node, before: Sequence[Dim], after: Sequence[Dim]
) -> list[Dim]:
    """Of a Slice whose starts or ends are computed: axes that are not cut keep their size, as in [-n:] of n elements.

    The library then gives all axes a new symbol, even axes that the Slice does not name.
    """
    starts, ends = (context.get_symbolic_value(value) if value is not None else None for value in node.inputs[1:3])
    axes, steps = (integers(optional(node, position)) for position in (3, 4))
    are_numbers = starts is not None and all(isinstance(start, int) for start in starts)
    if axes is None or (are_numbers and ends is not None):
        return [*after]
    cuts = zip(starts or [0] * len(axes), ends or [0] * len(axes), steps or [1] * len(axes), strict=True)
    dims = [*before]
    for axis, (start, end, step) in zip(axes, cuts, strict=True):
        to_end = isinstance(end, int) and end >= FAR
        if not to_end or step != 1 or isinstance(start, int) or not agree((0 - start).simplify(), before[axis]):
            dims[axis] = after[axis]
    return dims


def _may_be_shorter(before: Dim, after: Dim) -> bool:
    """Whether a Slice of a free axis, whose size is at least 1, may have fewer rows than the number `after`."""
    return isinstance(number(before), ir.SymbolicDim) and isinstance(after, int) and after > 1


def _broadcast(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Two free axes that are broadcast may differ: either may be 1. The library assumes that they are equal.

    It also assumes that an Expand of an unknown shape has the target shape, whose 1 may stand for a larger axis.
    """
    out = node.outputs[0]
    if out.shape is None:
        return
    operands = [[*value.shape.dims] for value in node.inputs if value is not None and value.shape is not None]
    matrix_axes = 0
    if node.op_type == "MatMul":  # of a vector and a matrix the product has one axis that is not broadcast
        matrix_axes = sum(len(operand) > 1 for operand in operands)
        operands = [operand[:-2] for operand in operands]
    if node.op_type == "Expand":
        operands = operands[:1]
        if node.inputs[0] is None or node.inputs[0].shape is None:
            out.shape = None
            return
    dims = list(out.shape.dims)
    broadcast = len(dims) - matrix_axes
    for axis in range(broadcast):
        own_axes = [axis - broadcast + len(operand) for operand in operands]
        sizes = [operand[own_axis] for operand, own_axis in zip(operands, own_axes, strict=True) if own_axis >= 0]
        sizes += [dims[axis]] if node.op_type == "Expand" else []
        free = [size for size in sizes if isinstance(number(size), ir.SymbolicDim)]
        if isinstance(number(dims[axis]), ir.SymbolicDim) and free:
            longest = next((size for size in free if all(agree(size, other) for other in free)), None)
            dims[axis] = context.new_symbolic_dim() if longest is None else longest
    out.shape = ir.Shape(dims)


def _cache(context: ShapeInferenceContext, node: ir.Node) -> None:
    """A cache of keys and values may be a buffer longer than past and new tokens; the library adds up the tokens."""
    for value in node.outputs[1:3]:
        if value.shape is not None:
            value.shape = ir.Shape([*value.shape.dims[:2], context.new_symbolic_dim(), value.shape.dims[3]])


def _reshape(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Min(128, n) rows that a Reshape makes to n are n: the number of elements stays.

    The library also leaves a size that is a number a symbol.
    """
    source, out = node.inputs[0], node.outputs[0]
    if source is None or source.shape is None or out.shape is None:
        return
    out.shape = ir.Shape([number(dim) for dim in out.shape.dims])
    pairs = zip_longest(source.shape.dims, out.shape.dims, fillvalue=1)
    dims = [before if agree(before, after) else after for before, after in pairs][: len(out.shape)]
    if dims != [*out.shape.dims] and same(product(dims), product(source.shape.dims)):
        out.shape = ir.Shape(dims)


def _split(context: ShapeInferenceContext, node: ir.Node) -> None:
    """The parts of a Split whose sizes are computed may differ; the library assumes equal parts."""
    if (sizes := optional(node, 1)) is not None and integers(sizes) is None:
        axis = attribute_int(node, "axis", 0)
        for value in node.outputs:
            if value.shape is not None:
                dims = [*value.shape.dims]
                dims[axis] = context.new_symbolic_dim()
                value.shape = ir.Shape(dims)


def _squeeze(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Without known axes the rank of the output is unknown if the input has a free axis, which may be 1.

    The library assumes that a Squeeze with computed axes names all axes of size 1, and that no free axis is 1.
    """
    value, axes = node.inputs[0], optional(node, 1)
    has_free = value is None or value.shape is None or any(isinstance(dim, ir.SymbolicDim) for dim in value.shape.dims)
    names_none = axes is None and "axes" not in node.attributes
    if (names_none and has_free) or (axes is not None and integers(axes) is None):
        node.outputs[0].shape = None


def _pool(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Rounding up, a pool leaves out a last window that begins in the padding. The library counts it in a free axis."""
    out = node.outputs[0]
    if attribute_int(node, "ceil_mode", 0) and out.shape is not None:
        dims = [number(dim) for dim in out.shape.dims]
        spatial = [dim if isinstance(dim, int) else context.new_symbolic_dim() for dim in dims[2:]]
        for value in node.outputs:
            value.shape = ir.Shape([*dims[:2], *spatial])


def _resize(context: ShapeInferenceContext, node: ir.Node) -> None:
    """The shape is unknown where the aspect ratio stays: the library takes the sizes as they are."""
    policy = node.attributes.get("keep_aspect_ratio_policy")
    if policy is not None and policy.as_string() != "stretch":
        node.outputs[0].shape = None


def _along_axis(context: ShapeInferenceContext, node: ir.Node) -> None:
    """With an axis Compress and Unique keep the rank of their input. The library takes its first output for flat."""
    shapes = [value.shape for value in (node.inputs[0], node.outputs[0]) if value is not None]
    if "axis" in node.attributes and len({len(shape) if shape is not None else None for shape in shapes}) > 1:
        node.outputs[0].shape = None


def _attention(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Without the shapes of all keys and values, past or new, the library takes those of others for theirs."""
    given = [value for value in (*node.inputs[:3], *node.inputs[4:6]) if value is not None]
    if any(value.shape is None for value in given):
        for value in node.outputs:
            value.shape = None


def _integer_product(context: ShapeInferenceContext, node: ir.Node) -> None:
    """A product of quantised factors, the second of which has two axes; the library does not know these operators."""
    left, right = node.inputs[:2]
    if left is not None and right is not None and left.shape is not None and right.shape is not None:
        shape = ir.Shape([*left.shape.dims[:-1], right.shape.dims[-1]])
        context.set_shape_and_dtype(node.outputs[0], shape, ir.DataType.FLOAT)


def _quantised_gemm(context: ShapeInferenceContext, node: ir.Node) -> None:
    """The output has the dtype of its zero point, or floats without it; the library does not know this operator."""
    left, right = node.inputs[0], node.inputs[3]
    zero = optional(node, 8)
    if left is None or right is None or left.shape is None or right.shape is None:
        return
    rows, columns = attribute_int(node, "transA", 0), 1 - attribute_int(node, "transB", 0)
    shape = ir.Shape([left.shape.dims[rows], right.shape.dims[columns]])
    context.set_shape_and_dtype(node.outputs[0], shape, ir.DataType.FLOAT if zero is None else zero.dtype)


def _gather_blocks(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Rows of a table with several numbers in a byte; the library does not know this operator."""
    table, indices, scales = node.inputs[:3]
    if table is None or indices is None or scales is None or table.shape is None or indices.shape is None:
        return
    numbers_per_byte = 8 // attribute_int(node, "bits", 4) if table.dtype == ir.DataType.UINT8 else 1
    row_dims = table.shape.dims[1:]
    if attribute_int(node, "gather_axis", 0) == 0 and len(row_dims) == 1 and isinstance(row_dims[0], int):
        shape = ir.Shape([*indices.shape.dims, row_dims[0] * numbers_per_byte])
        context.set_shape_and_dtype(node.outputs[0], shape, scales.dtype)


def _fused_product(context: ShapeInferenceContext, node: ir.Node) -> None:
    """FusedMatMul, whose factors may be transposed; the library does not know that of their batches."""
    factors = []
    for position, value in enumerate(node.inputs[:2]):
        dims = value.shape.dims if value is not None and value.shape is not None else None
        turned = [dims[axis] for axis in factor_axes(node, position, len(dims))] if dims is not None else None
        kind = value.type if value is not None else None
        factors.append(ir.Value(name="factor", shape=ir.Shape(turned) if turned is not None else None, type=kind))
    out, product, infer_product = node.outputs[0], ir.node("MatMul", factors), registry.get("", "MatMul", 13)
    if infer_product is not None:
        infer_product(context, product)
        out.shape, out.type = product.outputs[0].shape, product.outputs[0].type


def _channels_last(context: ShapeInferenceContext, node: ir.Node) -> None:
    """A pool with its channels in the last axis; ONNX's pools, whose shapes are taken, have them in axis 1."""
    if attribute_int(node, "channels_last", 0):
        node.outputs[0].shape = None


# Operator -> the functions that correct the library's answer, in order.
CORRECTIONS: Mapping[tuple[str, str], tuple[Inference, ...]] = {
    **{("", name): (_broadcast,) for name in (*BROADCASTING, "Expand", "MatMul")},
    **{("", name): (_pool,) for name in ("AveragePool", "LpPool", "MaxPool")},
    **{("", name): (_along_axis,) for name in ("Compress", "Unique")},
    ("", "Attention"): (_attention,),
    ("", "Cast"): (size_arithmetic.cast,),
    ("", "Div"): (size_arithmetic.quotient, size_arithmetic.float_quotient, _broadcast),
    ("", "Equal"): (_broadcast, size_arithmetic.equal),
    ("", "Gather"): (size_arithmetic.gather,),
    ("", "Min"): (size_arithmetic.minimum, _broadcast),
    ("", "OneHot"): (size_arithmetic.one_hot,),
    ("", "ReduceProd"): (size_arithmetic.all_multiplied,),
    ("", "Sub"): (size_arithmetic.difference, _broadcast),
    ("", "Reshape"): (_reshape,),
    ("", "Resize"): (_resize,),
    ("", "Slice"): (_slice, size_arithmetic.cut),
    ("", "Split"): (_split,),
    ("", "Squeeze"): (_squeeze,),
    ("", "Where"): (_broadcast, size_arithmetic.where),
    ("com.microsoft", "GroupQueryAttention"): (_cache,),
    ("com.microsoft", "QLinearAveragePool"): (_channels_last,),
    ("com.microsoft", "QLinearGlobalAveragePool"): (_channels_last,),
}
UNKNOWN_TO_LIBRARY: Mapping[str, Inference] = {
    "DynamicQuantizeMatMul": _integer_product,
    "FusedMatMul": _fused_product,
    "GatherBlockQuantized": _gather_blocks,
    "MatMulIntegerToFloat": _integer_product,
    "QGemm": _quantised_gemm,
}


# Contrib operators that the library does not know, or takes for elementwise (the pools) -> the ONNX operator, by name
# and version, with the same shapes.
SAME_SHAPES_AS = {
    "DequantizeLinear": ("DequantizeLinear", 21),
    "FusedConv": ("Conv", 11),
    "FusedGemm": ("Gemm", 13),
    "QLinearAveragePool": ("AveragePool", 19),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", 1),
    "QuantizeLinear": ("QuantizeLinear", 21),
}


def _corrected(library: Inference, corrections: tuple[Inference, ...]) -> Inference:
    def infer_corrected(context: ShapeInferenceContext, node: ir.Node) -> None:
        for step in (library, *corrections):
            step(context, node)

    return infer_corrected


def _register() -> None:
    registry.collect()
    for name, function in UNKNOWN_TO_LIBRARY.items():
        registry.register("com.microsoft", name, since_version=1)(function)
    for name, onnx_operator in SAME_SHAPES_AS.items():
        if (function := registry.get("", *onnx_operator)) is not None:
            registry.register("com.microsoft", name, since_version=1)(function)
    # ONNX Runtime writes LayerNormalization before opset 17, too.
    if (function := registry.get("", "LayerNormalization", 17)) is not None:
        registry.register("", "LayerNormalization", since_version=1)(function)
    for (domain, name), corrections in CORRECTIONS.items():
        versions = registry.version_boundaries(domain, name)
        functions = {version: registry.get(domain, name, version) for version in versions}
        for version, function in functions.items():
            if function is not None:
                registry.register(domain, name, since_version=version)(_corrected(function, corrections))


_register()
