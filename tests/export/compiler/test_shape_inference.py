"""The inferred shapes never contradict the shapes that an operator gives, on ONNX's own operator tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from foreign_networks import check_equal, parse
from onnx import numpy_helper
from test_onnx_operators import LARGEST, cases

from export.compiler.errors import NotSupported
from export.compiler.operators.shape_inference import infer
from export.compiler.passes.prepare import prepare

OTHER_TYPES = {"Cast", "CastLike", "QuantizeLinear"}  # their tests hold numbers of 8 bits in other forms


def with_shapes(case: Any, known: str | int) -> onnx.ModelProto:
    """The case with sizes, vectors of integers as weights. `known`: all sizes, none, or none of one input's."""
    proto = onnx.ModelProto()
    proto.CopyFrom(case.model)
    arrays, kept = case.data_sets[0][0], []
    for position, (value, array) in enumerate(zip(proto.graph.input, arrays, strict=True)):
        if position and array.dtype == np.int64 and array.ndim < 2:
            proto.graph.initializer.append(numpy_helper.from_array(array, value.name))
            continue
        kept.append(value)
        if known == position:
            value.type.tensor_type.ClearField("shape")
        elif known != "all":
            for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                dim.dim_param = f"input{position}_{axis}"
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return proto


def contradictions(case: Any) -> Iterator[str]:
    inputs, outputs = case.data_sets[0]
    sizes = {
        f"input{place}_{axis}": size for place, array in enumerate(inputs) for axis, size in enumerate(array.shape)
    }
    for known in ("all", "none", *range(len(inputs))):
        model = ir.from_proto(with_shapes(case, known))
        with suppress(NotSupported):
            infer(model)
        for value, array in zip(model.graph.outputs, outputs, strict=True):
            if value.shape is None:
                continue
            shape = [
                dim
                if isinstance(dim, int)
                else dim.evaluate(sizes)
                if "_d" not in str(dim) and dim.free_symbols() <= sizes.keys()
                else size
                for dim, size in zip(value.shape.dims, [*array.shape, *value.shape.dims], strict=False)
            ]
            if shape != [*array.shape]:
                yield f"{case.name}, {known} known: {value.shape} of {array.shape}"


@pytest.mark.slow
def test_no_inferred_shape_contradicts_an_operator() -> None:
    found: list[str] = []
    for case in cases():
        types = [value.type for value in (*case.model.graph.input, *case.model.graph.output)]
        nodes = case.model.graph.node
        arrays = [array for arrays in case.data_sets[0] for array in arrays]
        if len(nodes) > 1 or nodes[0].domain or nodes[0].op_type in OTHER_TYPES:
            continue
        are_small = all(isinstance(array, np.ndarray) and array.size <= LARGEST for array in arrays)
        if are_small and all(each.HasField("tensor_type") for each in types):
            found += contradictions(case)
    assert not found, "\n".join([str(len(found)), *found[:20]])


HEAD = '<ir_version: 8, opset_import: ["": 18]> g '


REPEATED = "s = Shape(z) v = Concat<axis = 0>(single, s)"  # as TorchScript repeats rows, with OneHot and Tile


@pytest.mark.parametrize(
    ("inputs", "nodes", "expected"),
    [
        ("float[b, h, n, 4] x", "y = MatMul(x, vector)", "[b,h,n]"),
        ("float[h, 4, n] x", "y = MatMul(vector, x)", "[h,n]"),
        ("float[b, 1, n, 4] x, float[h, 4, 3] z", "y = MatMul(x, z)", "[b,h,n,3]"),
        ("float x", "y = Expand(x, one)", "None"),
        ("float[b, 2, 2] x", 'y = Resize<keep_aspect_ratio_policy = "not_larger">(x, , , seven)', "None"),
        ("float[b, 3, n] x", "y = MaxPool<ceil_mode = 1, kernel_shape = [1], strides = [2]>(x)", "[b,3,_d0]"),
        ("float[b, 3, 4] x", "y = MaxPool<ceil_mode = 1, kernel_shape = [1], strides = [2]>(x)", "[b,3,2]"),
        ("float[b, n, 4] x", "y = Slice(x, minus_three, three, one_axis)", "[b,_d0,4]"),
        ("float[b, n, 4] x", "y = Slice(x, one_axis, two, one_axis)", "[b,_d0,4]"),  # no row of a single row
        ("float[b, n, 4] x", "y = Slice(x, zero, billion, one_axis)", "[b,n,4]"),  # as tf2onnx writes [:]
        ("float[b, h, n] x", "s = Shape(x) p = ReduceProd(s) y = Expand(three, p)", "[b*h*n]"),
        ("float[n] z, float[2, 4] x", f"{REPEATED} h = OneHot(one_axis, two, v) y = Tile(x, h)", "[2,4*n]"),
        ("float[n] z, float[2, 4] x", f"{REPEATED} h = OneHot(minus_two, two, v) y = Tile(x, h)", "[2*n,4]"),
    ],
)
def test_a_shape_that_the_library_takes_for_another(inputs: str, nodes: str, expected: str) -> None:
    given = {"vector": np.ones(4, np.float32), "one": np.array([1, 1]), "seven": np.array([1, 7, 8])}
    given |= {"minus_three": np.array([-3]), "three": np.array([3]), "one_axis": np.array([1]), "two": np.array([2])}
    given |= {"zero": np.array([0]), "billion": np.array([10**9]), "single": np.array([1])}
    given |= {"minus_two": np.array([-2])}
    model = parse(f"{HEAD} ({inputs}) => (float y) {{ {nodes} }}", **given)
    for value in model.graph.inputs:
        value.shape = None if value.shape is not None and not len(value.shape) else value.shape
    model.graph.outputs[0].shape = None
    infer(model)
    assert str(model.graph.outputs[0].shape) == expected


def test_a_norm_of_a_later_opset_has_a_shape() -> None:
    """ONNX Runtime's optimisers write LayerNormalization in files of any opset."""
    nodes = "(float[b, n, 4] x) => (float y) { y = LayerNormalization(x, scale) }"
    model = parse(f"{HEAD.replace('18', '14')} {nodes}", scale=np.ones(4, np.float32))
    model.graph.outputs[0].shape = None
    infer(model)
    assert str(model.graph.outputs[0].shape) == "[b,n,4]"


@pytest.mark.parametrize(
    "nodes",
    [
        "v = Slice(sizes, last, far, first, back)",
        "c = Cast<to = 9>(sizes) v = Cast<to = 7>(c)",
        "r = Unsqueeze(sizes, first) v = Gather(r, zero)",
        "f = Cast<to = 1>(sizes) t = Cast<to = 1>(large) q = Div(f, t) c = Ceil(q) v = Cast<to = 7>(c)",
        "s = ReduceSum<keepdims = 0>(x, axes) o = Cast<to = 9>(s) c = Where(o, three, three) t = ConstantOfShape(c)"
        " v = Shape(t)",
    ],
)
def test_elements_that_the_library_takes_for_others(nodes: str) -> None:
    far = -(2**63) + 1  # PyTorch's end before the first element
    given = {name: np.array([value]) for name, value in [("last", -1), ("far", far), ("first", 0), ("back", -1)]}
    nodes = f"sizes = Shape(x) large = Mul(sizes, hundred) {nodes} y = Add(v, v)"
    model = parse(
        f"{HEAD} (float[2, 6, 4] x) => (int64 y) {{ {nodes} }}",
        **given,
        hundred=np.array(101),
        zero=np.array(0),
        three=np.array(3),
        axes=np.array([1, 2]),
    )
    prepare(prepared := model.clone())
    check_equal(model, prepared, {"x": np.zeros((2, 6, 4), np.float32)})
