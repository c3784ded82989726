"""Operators of ONNX Runtime itself, integers and pads: which part is computed; ONNX Runtime's answers decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import answers, parse, with_read_rows_alone, wrote
from numpy.typing import NDArray

from export.compiler.errors import NothingToRewrite, NotSupported
from export.compiler.graph.symbolic_shapes import Shapes
from export.compiler.operators import table
from export.compiler.operators.boxes import Box
from export.compiler.operators.demand_rules import Demand, elementwise, everything
from export.compiler.operators.shape_inference import infer
from export.compiler.passes.prepare import prepare
from export.compiler.pipeline import rewrite

Array = NDArray[Any]

HEADER = '<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g (float[n, s, 16] a, float[n, s, 16] b) => '
RNG = np.random.default_rng(0)


def weights() -> dict[str, Array]:
    """A float matrix, int4 blocks, int8 matrices with scales, tables, indices."""
    packed = RNG.integers(0, 256, (16, 1, 8), dtype=np.uint8)
    return {
        "w": RNG.standard_normal((16, 16)).astype(np.float32),
        "v": RNG.standard_normal(16).astype(np.float32),
        "k": RNG.standard_normal((16, 1, 3)).astype(np.float32),
        "q4": packed,
        "s4": RNG.random((16, 1)).astype(np.float32),
        "w8": RNG.integers(-127, 128, (16, 16)).astype(np.int8),
        "s8": (RNG.random(16) / 100 + 0.001).astype(np.float32),
        "z8": np.zeros(16, np.int8),
        "scale": np.array(0.02, np.float32),
        "half": np.array(0.01, np.float32),
        "zero": np.array(3, np.uint8),
        "cos": RNG.random((64, 4)).astype(np.float32),
        "sin": RNG.random((64, 4)).astype(np.float32),
        **{"one": np.array([1]), "axis": np.array(1), "two": np.array([2]), "heads": np.array([0, 0, 2, 8])},
    }


OVER_ROWS = (
    "m = com.microsoft.QLinearSoftmax<axis = {axis}, opset = {opset}>(x, scale, zero, scale, zero) y = Cast<to = 1>(m)"
)
QUANTISED = "x = QuantizeLinear(a, scale, zero)"
JOINED = (
    "z = QuantizeLinear(b, scale, zero) "
    "m = com.microsoft.QLinearConcat<axis = {axis}>(scale, zero, x, scale, zero, z, half, zero)"
)
PLACES = "t = Shape<start = 1, end = 2>(a) r = Squeeze(t) i = Range(nil, r, step) j = Unsqueeze(i, first)"
SPREAD = "u = Shape<start = 0, end = 2>(a) p = Expand(j, u)"
CAUSAL = "t = Transpose<perm = [0, 2, 1]>(a) c, s = com.microsoft.CausalConvWithState(t, k)"
CUT = [  # the operators that are cut, and nodes from a and b to y
    ("BiasGelu", "y = com.microsoft.BiasGelu(a, v)"),
    ("FastGelu", "y = com.microsoft.FastGelu(a)"),
    ("FastGelu", "y = com.microsoft.FastGelu(a, v)"),
    ("QuickGelu", "y = com.microsoft.QuickGelu<alpha = 1.702>(a)"),
    ("Gelu", "y = com.microsoft.Gelu(a)"),
    ("SkipLayerNormalization", "y = com.microsoft.SkipLayerNormalization<epsilon = 0.00001>(a, b, v, v)"),
    ("SkipLayerNormalization", "c, , , d = com.microsoft.SkipLayerNormalization(a, b, v, v, v) y = Mul(c, d)"),
    ("SkipSimplifiedLayerNormalization", "y = com.microsoft.SkipSimplifiedLayerNormalization(a, b, v)"),
    ("SkipSimplifiedLayerNormalization", "c, , , y = com.microsoft.SkipSimplifiedLayerNormalization(a, b, v)"),
    ("MatMulNBits", "y = com.microsoft.MatMulNBits<K = 16, N = 16, bits = 4, block_size = 16>(a, q4, s4)"),
    ("FusedMatMul", "y = com.microsoft.FusedMatMul<alpha = 0.5, transB = 1>(a, w)"),
    ("FusedMatMul", "t = Transpose<perm = [0, 2, 1]>(a) y = com.microsoft.FusedMatMul<transA = 1>(t, w)"),
    ("RotaryEmbedding", f"{PLACES} {SPREAD} y = com.microsoft.RotaryEmbedding<num_heads = 2>(a, p, cos, sin)"),
    ("MultiHeadAttention", "y = com.microsoft.MultiHeadAttention<num_heads = 2>(a, b, b)"),
    ("MatMul", f"{CAUSAL} d = Transpose<perm = [0, 2, 1]>(c) y = MatMul(d, w)"),
    ("MatMulInteger", "x, c, z = DynamicQuantizeLinear(a) m = MatMulInteger(x, w8, z) y = Cast<to = 1>(m)"),
    (
        "MatMulIntegerToFloat",
        "x, c, z = DynamicQuantizeLinear(a) y = com.microsoft.MatMulIntegerToFloat(x, w8, c, s8, z)",
    ),
    ("QLinearMatMul", f"{QUANTISED} m = QLinearMatMul(x, scale, zero, w8, s8, z8, scale, zero) y = Cast<to = 1>(m)"),
    (
        "QLinearMatMul",  # of two computed factors, as scores are
        f"{QUANTISED} t = Transpose<perm = [0, 2, 1]>(b) o = MatMul(t, b) u = QuantizeLinear(o, scale, zero) "
        "m = QLinearMatMul(x, scale, zero, u, scale, zero, scale, zero) y = Cast<to = 1>(m)",
    ),
    ("QuantizeLinear", f"{QUANTISED} y = DequantizeLinear(x, scale, zero)"),
    (
        "DequantizeLinear",
        "x = com.microsoft.QuantizeLinear(a, scale, zero) y = com.microsoft.DequantizeLinear(x, scale, zero)",
    ),
    (
        "QLinearAdd",
        f"{QUANTISED} m = com.microsoft.QLinearAdd(x, scale, zero, x, scale, zero, scale, zero) y = Cast<to = 1>(m)",
    ),
    ("QLinearConcat", f"{QUANTISED} {JOINED.format(axis=2)} f = Cast<to = 1>(m) y = Slice(f, eight, end, last)"),
    ("QLinearSoftmax", f"{QUANTISED} {OVER_ROWS.format(axis=2, opset=12)}"),
    ("QLinearSoftmax", f"{QUANTISED} {OVER_ROWS.format(axis=-1, opset=13)}"),
    (
        "QLinearWhere",
        f"{QUANTISED} less = Less(a, b) "
        "m = com.microsoft.QLinearWhere(less, x, scale, zero, x, scale, zero, scale, zero) y = Cast<to = 1>(m)",
    ),
]
WHOLE = [  # nothing before the operator is cut
    ("RotaryEmbedding", "y = com.microsoft.RotaryEmbedding<num_heads = 2>(a, two, cos, sin)"),
    ("MultiHeadAttention", "y = com.microsoft.MultiHeadAttention<num_heads = 2, unidirectional = 1>(a, b, b)"),
    ("DynamicQuantizeLinear", "x, c, z = DynamicQuantizeLinear(a) m = Cast<to = 1>(x) y = Mul(m, c)"),
    ("DynamicQuantizeMatMul", "y = com.microsoft.DynamicQuantizeMatMul(a, w8, s8)"),
]
CUTS = [{1: [-1]}, {1: [0]}, {0: [0], 1: [-1]}, {1: [-1], 2: [3, 1]}]
PADDED = 't = Relu(a) y = Pad<mode = "{mode}">(t, {arguments})'
PADS = {"all_axes": [0, 0, 1, 0, 0, 2], "token_axis": [0, 1, 0, 0, 0, 0], "cropped": [0, 0, -2, 0, 0, -1]}
ALONG_ROWS = f"{QUANTISED} {JOINED.format(axis=1)} y = Cast<to = 1>(m)"


def cut_model(nodes: str, cut: dict[int, list[int]]) -> ir.Model:
    name, gathers = "y", ""
    for axis in cut:
        gathers += f" p{axis} = Gather<axis = {axis}>({name}, rows{axis})"
        name = f"p{axis}"
    given = weights() | {"nil": np.array(0), "step": np.array(1), "first": np.array([0])}
    given |= {"eight": np.array([8]), "end": np.array([24]), "last": np.array([2]), "pair": np.array([1, 2])}
    return parse(
        f"{HEADER}(float {name}) {{ {nodes}{gathers} }}",
        **given,
        **PADS,
        **{f"rows{axis}": rows for axis, rows in cut.items()},
    )


def cut_and_run(nodes: str, cut: dict[int, list[int]], opset: int = 21) -> ir.Model:
    original = cut_model(nodes, cut)
    original.opset_imports[""] = opset
    rewritten = with_read_rows_alone(original)
    for batch, length in ((2, 5), (1, 7), (2, 1)):
        feeds = {name: RNG.standard_normal((batch, length, 16)).astype(np.float32) for name in "ab"}
        for before, after in zip(answers(original, feeds), answers(rewritten, feeds), strict=True):
            assert before.shape == after.shape
            np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)
    infer(rewritten)
    return rewritten


def computed(model: ir.Model, operator: str) -> set[tuple[int | None, ...]]:
    """The sizes of the operator's outputs; None where they are free."""
    shapes = Shapes(model.graph)
    outputs = [value for node in model.graph if node.op_type == operator for value in node.outputs if value.name]
    return {tuple(shapes.static(value, axis) for axis in range(3)) for value in outputs}


@pytest.mark.parametrize(("operator", "nodes"), CUT)
@pytest.mark.parametrize("cut", CUTS)
def test_rows_of_an_operator_of_onnx_runtime(operator: str, nodes: str, cut: dict[int, list[int]]) -> None:
    assert {rows for _, rows, _ in computed(cut_and_run(nodes, cut), operator)} == {1}


@pytest.mark.parametrize("arguments", ["all_axes", "all_axes, half", "cropped", "pair, , last"])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_axes_that_are_not_padded_are_cut(mode: str, arguments: str) -> None:
    for cut in CUTS:
        rewritten = cut_and_run(PADDED.format(mode=mode, arguments=arguments), cut)
        assert computed(rewritten, "Relu") == {(1 if 0 in cut else None, 1, 16)}


def test_a_padded_axis_is_computed_entirely() -> None:
    rewritten = cut_and_run(PADDED.format(mode="constant", arguments="token_axis"), {1: [-1], 2: [3, 1]})
    assert computed(rewritten, "Relu") == {(None, None, 2)}


def test_pads_in_an_attribute_are_read() -> None:
    rewritten = cut_and_run("t = Relu(a) y = Pad<pads = [0, 0, 1, 0, 0, 2]>(t)", {1: [-1]}, opset=10)
    assert computed(rewritten, "Pad") == {(None, 1, 19)}


def test_pads_that_are_computed_keep_everything() -> None:
    pads = "n = Shape<start = 0, end = 1>(a) z = Sub(n, n) p = Concat<axis = 0>(z, n, z, z, z, z)"
    rewritten = cut_and_run(f"t = Relu(a) {pads} y = Pad(t, p)", {1: [-1]})
    assert computed(rewritten, "Relu") == {(None, None, 16)}


@pytest.mark.parametrize(("cut", "features"), [({1: [-1]}, 16), ({1: [0], 2: [3, 1]}, 2)])
def test_a_concatenated_axis_is_computed_entirely(cut: dict[int, list[int]], features: int) -> None:
    assert computed(cut_and_run(ALONG_ROWS, cut), "QLinearConcat") == {(None, None, features)}


def cut_every_part(shapes: Shapes, node: ir.Node, index: int, demand: Box) -> Demand:
    parts = dict.fromkeys(range(2, len(node.inputs), 3), demand)
    return Demand(demand, {**everything(node).inputs, **parts})


@pytest.mark.parametrize(
    ("rules", "operator", "rule", "nodes", "cut"),
    [
        (table.STANDARD, "Pad", elementwise, PADDED.format(mode="constant", arguments="all_axes"), {2: [3, 1]}),
        (table.CONTRIB, "QLinearConcat", cut_every_part, ALONG_ROWS, {1: [-1]}),
    ],
)
def test_a_wrong_rule_is_found(
    rules: dict[str, table.Operator],
    operator: str,
    rule: Any,
    nodes: str,
    cut: dict[int, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(rules, operator, table.Operator(rule))
    with pytest.raises(AssertionError):
        cut_and_run(nodes, cut)


@pytest.mark.parametrize(("operator", "nodes"), WHOLE)
def test_an_operator_whose_rows_depend_on_each_other_stays_whole(operator: str, nodes: str) -> None:
    rewritten = cut_and_run(nodes, {1: [-1]})
    node = next(node for node in rewritten.graph if node.op_type == operator)
    assert node.inputs[0] is rewritten.graph.inputs[0]


@pytest.mark.parametrize("channels_last", [0, 1])
@pytest.mark.parametrize("pool", ["AveragePool<kernel_shape = [2, 2], strides = [2, 2], {}>", "GlobalAveragePool<{}>"])
def test_a_quantised_pool_has_the_shape_of_its_answer(pool: str, channels_last: int) -> None:
    operator = f"com.microsoft.QLinear{pool.format(f'channels_last = {channels_last}')}"
    head = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[2, 4, 8, 8] x) => (uint8 y)'
    nodes = f"q = QuantizeLinear(x, scale, zero) y = {operator}(q, scale, zero, scale, zero)"
    model = parse(f"{head} {{ {nodes} }}", scale=np.array(0.02, np.float32), zero=np.array(3, np.uint8))
    infer(model)
    (answer,) = answers(model, {"x": np.ones((2, 4, 8, 8), np.float32)})
    shape = model.graph.outputs[0].shape
    assert (None if shape is None else tuple(shape.dims)) == (None if channels_last else answer.shape)


def test_a_quantised_gemm_makes_integers_of_its_last_zero_point() -> None:
    """ONNX Runtime refuses a file that calls them floats."""
    cut_and_run(
        f"{QUANTISED} t = Flatten<axis = 2>(x) m = com.microsoft.QGemm(t, scale, zero, w8, s8, z8, , scale, zero) "
        "f = Cast<to = 1>(m) y = Unsqueeze(f, first)",
        {1: [-1]},
    )


def test_a_layer_with_its_activation_is_cut_and_a_convolution_whole() -> None:
    """As ONNX Runtime's optimiser writes them."""
    rewritten = cut_and_run(
        't = Transpose<perm = [0, 2, 1]>(a) c = com.microsoft.FusedConv<activation = "Relu", group = 16, pads = [1, 1]>'
        "(t, k) d = Transpose<perm = [0, 2, 1]>(c) f = Flatten<axis = 2>(d) "
        'm = com.microsoft.FusedGemm<activation = "Tanh">(f, w, v) y = Unsqueeze(m, first)',
        {1: [-1]},
    )
    rows = {node.op_type: Shapes(rewritten.graph).static(node.outputs[0], 0) for node in rewritten.graph}
    assert (rows["FusedConv"], rows["FusedGemm"]) == (None, 1)


def test_new_weights_are_not_made_where_no_exact_reference_exists() -> None:
    nodes = "m = Mul(a, v) t = MatMul(m, w) g = com.microsoft.QuickGelu(t) y = MatMul(g, w)"
    rewritten = rewrite(cut_model(nodes, {1: [-1]}))
    assert [step.name for step in rewritten.steps] == ["read-rows", "split-products"]
    assert rewritten.steps[0].macs * 64 == rewritten.macs
    with pytest.raises(NothingToRewrite):
        rewrite(cut_model(nodes, {1: [-1]}), passes=["fold-affine"])


OTHERS = ["com.microsoft.Sampling", "com.microsoft.Inverse", "ai.else.MatMulNBits", "MatMull"]


@pytest.mark.parametrize("operator", OTHERS)
def test_other_operators_are_named(operator: str) -> None:
    with pytest.raises(NotSupported, match=f"found {operator}"):
        rewrite(cut_model(f"y = {operator}(a)", {1: [0]}))


@pytest.mark.parametrize("slack", [0, 1])
def test_a_cache_of_a_fixed_length_is_compared_where_tokens_are(slack: int, tmp_path: Path) -> None:
    """As onnxruntime-genai builds Gemma 3; behind its tokens such a cache holds what the memory held."""
    attributes = "num_heads = 2, kv_num_heads = 1, do_rotary = 0, local_window_size = 16, sliding_window_cache = 1"
    counts = "c = ReduceSum<keepdims = 0>(attention_mask, one) d = Sub(c, one) e = Cast<to = 6>(d)"
    total = "u = Shape<start = 1, end = 2>(attention_mask) v = Cast<to = 6>(u) t = Squeeze(v)"
    gqa = f"h, present_key, present_value = com.microsoft.GroupQueryAttention<{attributes}>"
    nodes = f"{counts} {total} {gqa}(a, b, b, past_key, past_value, e, t) logits = MatMul(h, w)"
    caches = [f"float[n, 1, held, 8] {name}" for name in ("past_key", "past_value")]
    given = ", ".join(["float[n, s, 16] a", "float[n, s, 8] b", "int64[n, all] attention_mask", *caches])
    text = f'<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g ({given}) => '
    text += f"(float logits, float present_key, float present_value) {{ {nodes} }}"
    model = parse(text, w=weights()["w"], one=np.array([1]))
    ir.save(model, path := tmp_path / "model.onnx")
    dims = ["--dims", f"held={16 + slack}"] if slack else []
    wrote(path, "-o", tmp_path / "out.onnx", "--read", "logits[:,-1:]", "--read", "*", *dims)


def test_a_weight_of_two_forms_is_in_the_file_once() -> None:
    """As an int4 head that is the table of embeddings too."""
    made = "com.microsoft.MatMulNBits<K = 16, N = 16384, bits = 4, block_size = 16>(a, q4, s4)"
    nodes = f"y = {made} t = Reshape(q4, form) i = Cast<to = 7>(b) g = Gather(t, i)"
    packed, scales = RNG.integers(0, 256, (16384, 1, 8), dtype=np.uint8), RNG.random((16384, 1)).astype(np.float32)
    model = parse(f"{HEADER}(float y, uint8 g) {{ {nodes} }}", q4=packed, s4=scales, form=np.array([16384, 8]))
    prepare(model)
    weights = [value.const_value for value in model.graph.initializers.values()]
    assert sum(weight is not None and weight.size == packed.size for weight in weights) == 1
