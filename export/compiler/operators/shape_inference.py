"""Infers shapes and dtypes, and corrects onnx_shape_inference where a free axis may be shorter than it takes.

In: a graph with a symbol for each free dimension of its inputs. Out: the same with shapes. Names that the file gives to
inner dimensions are ignored: they may be wrong.
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
from export.compiler.graph.attributes import attribute_int, optional
from export.compiler.graph.constants import integers
from export.compiler.graph.shapes import FAR, WHOLE_NUMBERS, Dim, agree, number, product, same, slices
from export.compiler.operators.table import BROADCASTING

Inference = Callable[[ShapeInferenceContext, ir.Node], None]


def infer_new(model: ir.Model) -> None:
    """As `infer`, for nodes without shapes and readers of their integers; other values keep their shapes."""
    new = {node for node in model.graph if any(value.shape is None or value.dtype is None for value in node.outputs)}
    if not new:
        return
    context = ShapeInferenceContext(model.opset_imports, policy="refine")
    values = [*model.graph.inputs, *(value for node in model.graph for value in node.outputs)]
    dims = {dim for value in values if value.shape is not None for dim in value.shape.dims}
    context.reserve_symbol_names({name for dim in dims if isinstance(dim, ir.SymbolicDim) for name in _symbols(dim)})
    for value in values:
        if known := elements_of(value):
            context.set_symbolic_value(value, known)
    fresh: set[ir.Value | None] = set()
    for node in model.graph:
        if node not in new and fresh.isdisjoint(node.inputs):
            continue
        function = registry.get(node.domain, node.op_type, context.get_opset_version(node.domain))
        if function is None:  # known as a function of other operators, or not at all
            infer(model)
            return
        for value in node.outputs:
            value.metadata_props.pop(SYM_DATA_KEY, None)
            value.const_value = None
        with _as_refusal():
            function(context, node)
        fresh |= {value for value in node.outputs if value.dtype in WHOLE_NUMBERS}


def elements_of(value: ir.Value) -> list[Dim]:
    """Of integers that are known numbers or sizes; none of other values."""
    known: list[int | str] = json.loads(value.metadata_props.get(SYM_DATA_KEY, "[]"))
    return [each if isinstance(each, int) else ir.SymbolicDim(each) for each in known]


def _symbols(dim: ir.SymbolicDim) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", str(dim)))


@contextmanager
def _as_refusal() -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # the base class of all the library's errors
        raise NotSupported(f"shapes: expected a graph that fits together, found {error}") from error


def infer(model: ir.Model) -> None:
    """Sets the shape and dtype of every value, and the elements of known integers."""
    kept = {id(value) for value in (*model.graph.inputs, *model.graph.initializers.values())}
    for node in model.graph:
        for value in node.outputs:
            if id(value) not in kept:
                value.shape = None
                value.const_value = None
            value.metadata_props.pop(SYM_DATA_KEY, None)
    logging.getLogger("onnx_shape_inference").setLevel(logging.ERROR)
    with _as_refusal():
        infer_symbolic_shapes(model, warn_on_missing=False, adopt_declared_symbols=False)


def _slice(context: ShapeInferenceContext, node: ir.Node) -> None:
    """The library takes [:, :512] of a free axis for 512 rows, however short it is, and [:, -1:] for any number."""
    source, rows = node.inputs[0], node.outputs[0]
    if source is None or source.shape is None or rows.shape is None:
        return
    pairs = zip(source.shape.dims, rows.shape.dims, strict=True)
    dims = [context.new_symbolic_dim() if _cut(old, new) else new for old, new in pairs]
    dims = _of_free_starts(context, node, source.shape.dims, dims)
    for axis, (start, end, step) in (slices(node, len(dims)) or {}).items():
        if start == -1 and end >= FAR and step == 1 and isinstance(number(source.shape[axis]), ir.SymbolicDim):
            dims[axis] = 1
    rows.shape = ir.Shape(dims)


def _of_free_starts(context: ShapeInferenceContext, node: ir.Node, old: Sequence[Dim], new: Sequence[Dim]) -> list[Dim]:
    """The library then knows no axis, not even those that are not cut; [-n:] of n elements, or fewer, are all."""
    starts, ends = (context.get_symbolic_value(value) if value is not None else None for value in node.inputs[1:3])
    axes, steps = (integers(optional(node, position)) for position in (3, 4))
    numbers = starts is not None and all(isinstance(start, int) for start in starts)
    if axes is None or (numbers and ends is not None):
        return [*new]
    cuts = zip(starts or [0] * len(axes), ends or [0] * len(axes), steps or [1] * len(axes), strict=True)
    dims = [*old]
    for axis, (start, end, step) in zip(axes, cuts, strict=True):
        far = isinstance(end, int) and end >= FAR
        if not far or step != 1 or isinstance(start, int) or not agree((0 - start).simplify(), old[axis]):
            dims[axis] = new[axis]
    return dims


def _cut(old: Dim, new: Dim) -> bool:
    """Whether a short axis would leave less than `new`; a size is at least 1."""
    return isinstance(number(old), ir.SymbolicDim) and isinstance(new, int) and new > 1


def _broadcast(context: ShapeInferenceContext, node: ir.Node) -> None:
    """The library takes two free axes that meet for equal; either may be 1 and be broadcast to the other."""
    out = node.outputs[0]
    if out.shape is None:
        return
    operands = [[*value.shape.dims] for value in node.inputs if value is not None and value.shape is not None]
    if node.op_type == "Expand":
        operands = operands[:1]
    apart = 2 if node.op_type == "MatMul" else 0
    dims = list(out.shape.dims)
    for axis in range(len(dims) - apart):
        places = [axis - len(dims) + len(operand) for operand in operands]
        sizes = [operand[place] for operand, place in zip(operands, places, strict=True) if place >= 0]
        sizes += [dims[axis]] if node.op_type == "Expand" else []
        free = [size for size in sizes if isinstance(number(size), ir.SymbolicDim)]
        if isinstance(number(dims[axis]), ir.SymbolicDim) and free:
            longest = next((size for size in free if all(agree(size, other) for other in free)), None)
            dims[axis] = context.new_symbolic_dim() if longest is None else longest
    out.shape = ir.Shape(dims)


def _of_any_length(context: ShapeInferenceContext, node: ir.Node) -> None:
    """The library takes a cache for past and new tokens; it may be a longer buffer."""
    for value in node.outputs[1:3]:
        if value.shape is not None:
            value.shape = ir.Shape([*value.shape.dims[:2], context.new_symbolic_dim(), value.shape.dims[3]])


def _least(context: ShapeInferenceContext, node: ir.Node) -> None:
    """The library gives the smaller of a number and a free size no name."""
    known = _operands(context, node)
    numbers, sizes = [[one for one in known if isinstance(one, int) is whole] for whole in (True, False)]
    if len(node.inputs) == 2 and len(numbers) == len(sizes) == 1:
        context.set_symbolic_value(node.outputs[0], [ir.SymbolicDim(f"Min({numbers[0]}, {sizes[0]})")])


def _quotient(context: ShapeInferenceContext, node: ir.Node) -> None:
    """The library divides numbers alone; batch * n divided by batch, as `mask.view(batch, -1)` is exported, is n."""
    known = _operands(context, node)
    if len(known) == 2 and isinstance(known[0], ir.SymbolicDim) and known[1] != 0:
        whole = known[0] // known[1]
        if same(whole * known[1], known[0]):
            context.set_symbolic_value(node.outputs[0], [number(whole)])


def _difference(context: ShapeInferenceContext, node: ir.Node) -> None:
    """The library does not see that n - n is 0, where a decoder's rows begin among its keys."""
    known = _operands(context, node)
    if len(known) == 2 and same(*known):
        context.set_symbolic_value(node.outputs[0], [0])


def _operands(context: ShapeInferenceContext, node: ir.Node) -> list[Dim]:
    """The inputs that are a known number or size."""
    held = [context.get_symbolic_value(value) if value is not None else None for value in node.inputs]
    return [values[0] for values in held if values is not None and len(values) == 1]


def _reshape(context: ShapeInferenceContext, node: ir.Node) -> None:
    """A table's min(128, n) rows are n if the elements are those of n: the number of elements stays.

    The library leaves a size that follows from the others, such as 24, a symbol.
    """
    source, out = node.inputs[0], node.outputs[0]
    if source is None or source.shape is None or out.shape is None:
        return
    out.shape = ir.Shape([number(dim) for dim in out.shape.dims])
    pairs = zip_longest(source.shape.dims, out.shape.dims, fillvalue=1)
    dims = [old if agree(old, new) else new for old, new in pairs][: len(out.shape)]
    if dims != [*out.shape.dims] and same(product(dims), product(source.shape.dims)):
        out.shape = ir.Shape(dims)


def _split(context: ShapeInferenceContext, node: ir.Node) -> None:
    """The library takes a Split whose sizes are an input for one in equal parts."""
    if (sizes := optional(node, 1)) is not None and integers(sizes) is None:
        axis = attribute_int(node, "axis", 0)
        for value in node.outputs:
            if value.shape is not None:
                dims = [*value.shape.dims]
                dims[axis] = context.new_symbolic_dim()
                value.shape = ir.Shape(dims)


def _squeeze(context: ShapeInferenceContext, node: ir.Node) -> None:
    """The library takes unknown axes for all those of size 1, and a free axis for longer than that."""
    value, axes = node.inputs[0], optional(node, 1)
    free = value is None or value.shape is None or any(isinstance(dim, ir.SymbolicDim) for dim in value.shape.dims)
    every = axes is None and "axes" not in node.attributes
    if (every and free) or (axes is not None and integers(axes) is None):
        node.outputs[0].shape = None


def _integer_product(context: ShapeInferenceContext, node: ir.Node) -> None:
    """The library does not know these operators; their second factor has two axes."""
    left, right = node.inputs[:2]
    if left is not None and right is not None and left.shape is not None and right.shape is not None:
        shape = ir.Shape([*left.shape.dims[:-1], right.shape.dims[-1]])
        context.set_shape_and_dtype(node.outputs[0], shape, ir.DataType.FLOAT)


def _quantised_gemm(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Integers of the type of the output's zero point, or floats; the library does not know this operator."""
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
    packed = 8 // attribute_int(node, "bits", 4) if table.dtype == ir.DataType.UINT8 else 1
    wide = table.shape.dims[1:]
    if attribute_int(node, "gather_axis", 0) == 0 and len(wide) == 1 and isinstance(wide[0], int):
        shape = ir.Shape([*indices.shape.dims, wide[0] * packed])
        context.set_shape_and_dtype(node.outputs[0], shape, scales.dtype)


def _causal_conv(context: ShapeInferenceContext, node: ir.Node) -> None:
    """As its input, and a state as the past one; the library does not know this operator."""
    for value, source in zip(node.outputs, (node.inputs[0], optional(node, 3)), strict=False):
        if source is not None and source.shape is not None:
            context.set_shape_and_dtype(value, source.shape, source.dtype)


# Operator -> what corrects the library's answer, in order.
CORRECTIONS: Mapping[tuple[str, str], tuple[Inference, ...]] = {
    **{("", name): (_broadcast,) for name in (*BROADCASTING, "Expand", "MatMul")},
    ("", "Div"): (_quotient, _broadcast),
    ("", "Min"): (_least, _broadcast),
    ("", "Sub"): (_difference, _broadcast),
    ("", "Reshape"): (_reshape,),
    ("", "Slice"): (_slice,),
    ("", "Split"): (_split,),
    ("", "Squeeze"): (_squeeze,),
    ("com.microsoft", "GroupQueryAttention"): (_of_any_length,),
}
UNKNOWN_TO_LIBRARY: Mapping[str, Inference] = {
    "CausalConvWithState": _causal_conv,
    "DynamicQuantizeMatMul": _integer_product,
    "GatherBlockQuantized": _gather_blocks,
    "MatMulIntegerToFloat": _integer_product,
    "QGemm": _quantised_gemm,
}


# ONNX Runtime's own operators, which the library does not know: as these of ONNX, by name and version.
AS_OF_ONNX = {
    "DequantizeLinear": ("DequantizeLinear", 21),
    "FusedConv": ("Conv", 11),
    "FusedGemm": ("Gemm", 13),
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
    for name, known in AS_OF_ONNX.items():
        if (library := registry.get("", *known)) is not None:
            registry.register("com.microsoft", name, since_version=1)(library)
    for (domain, name), corrections in CORRECTIONS.items():
        found = {version: registry.get(domain, name, version) for version in registry.version_boundaries(domain, name)}
        for version, library in found.items():
            if library is not None:
                registry.register(domain, name, since_version=version)(_corrected(library, corrections))


_register()
