from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import Encoder, Vision, check_equal, export, model, parse, proved, with_read_rows_alone

from export.compiler.analyses.axis_maps import input_axes
from export.compiler.errors import BadRequest, NothingToRewrite, ProofFailed
from export.compiler.graph.symbolic_shapes import FAR, Shapes
from export.compiler.operators.evaluate import evaluate
from export.compiler.passes.absorbed_attention import Absorber
from export.compiler.pipeline import optimise, prepared, rewrite
from export.compiler.proof.runner import session

SIZES = {"batch": 1, "seq": 24}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "exporter", "opset", "read", "left"),  # parts of the work behind reading rows and absorbing queries
    [
        (Encoder(), "old", 17, 0.68, 0.56),
        (Encoder(), "new", 23, 0.68, 0.56),
        (Vision(rows=1), "old", 17, 1, 0.7),
        (Vision(rows=2), "new", 18, 1, 0.7),
    ],
)
def test_the_last_layer_is_computed_for_the_rows_that_heads_read(
    network: Encoder | Vision, exporter: str, opset: int, read: float, left: float
) -> None:
    original = model(export(network, exporter, opset))
    rewritten = rewrite(original, sizes=SIZES)
    rows, absorbed = rewritten.steps[1:3]
    assert rows.macs < read * rewritten.macs
    assert absorbed.macs < min(left * rewritten.macs, rows.macs)
    assert proved(original, rewritten.model).error < 1e-13


@pytest.mark.parametrize("pool", ["mean", "both", "hidden"])
def test_where_every_row_is_read_nothing_is_rewritten(pool: str) -> None:
    with pytest.raises(NothingToRewrite, match="no multiplying operator computes more than the outputs read"):
        rewrite(model(export(Encoder(pool))), sizes=SIZES)


@pytest.mark.parametrize("read", ["y[:,0]", "y[:,0:2]", "y[:,1,3:9]"])
def test_a_read_of_an_output_makes_the_rest_superfluous(read: str) -> None:
    original = model(export(Encoder("hidden")))
    rewritten = rewrite(original, [read], sizes=SIZES)
    assert rewritten.steps[-1].macs < 0.75 * rewritten.macs
    assert proved(original, rewritten.model, [read]).error < 1e-13
    with pytest.raises(Exception, match="expected"):
        proved(original, rewritten.model, ["y[:,2]"])


def test_the_given_model_stays_as_it_is() -> None:
    original = model(export(Encoder()))
    nodes = len(original.graph)
    done = optimise(original, passes=["read-rows", "absorb-queries"], sizes=SIZES)
    assert len(original.graph) == nodes
    assert len(done.model.graph) != nodes
    with pytest.raises(BadRequest, match=r"passes: expected some of fold-affine, .*, found 'fold'"):
        optimise(original, passes=["fold"])


# ONNX's own tests and random graphs read parts of all operators, but of these not in such forms and sizes.
RULES = [
    ("y = Add(a, b)", (2, 1, 4), (5, 1)),
    ("y = Where(k, a, b)", (2, 5, 4), (4,)),
    ("y = MatMul(a, b)", (2, 5, 4), (4, 4)),
    ("y = MatMul(a, b)", (1, 5, 4), (2, 4, 4)),
    ("y = LayerNormalization<axis = -1>(a, b)", (2, 5, 4), (5, 4)),
    ("y = ScatterND(a, pair, b)", (2, 5, 4), (1, 5, 4)),
    ("y = ScatterND<reduction = 'add'>(a, three_pairs, b)", (2, 5, 4), (3, 4)),
    ("y = Einsum<equation = 'bik,bi->bik'>(a, b)", (2, 5, 4), (2, 5)),
    ("y = Einsum<equation = '...,...k->...k'>(b, a)", (2, 5, 4), (2, 5)),
    ("y = Einsum<equation = 'bik,ikj->bij'>(a, b)", (2, 1, 3), (5, 3, 4)),
    ("y = Einsum<equation = 'bhik,bjk->bijh'>(a, b)", (2, 4, 5, 3), (2, 4, 3)),
    ("t, i = TopK(a, two) y = Mul(t, t)", (2, 5, 4), (1,)),
    ("t, i = TopK<axis = 1>(a, five) y = Cast<to = 1>(i)", (2, 7, 4), (1,)),
    ("i = ArgMax<axis = 1, keepdims = 0>(a) y = Cast<to = 1>(i)", (2, 3, 5, 4), (1,)),
    ("i = ArgMin<axis = -1>(a) t = Cast<to = 1>(i) y = Add(a, t)", (2, 5, 4), (1,)),
    ("y = GatherElements(a, others)", (3, 5, 4), (1,)),
    ("y = GatherElements<axis = 1>(a, others)", (2, 5, 4), (1,)),
    ("y = GatherElements<axis = 2>(a, others)", (3, 5, 6), (1,)),
    ("y = ScatterElements<axis = 2>(a, others, b)", (2, 5, 4), (2, 5, 4)),
    ("i = Slice(others, zero, one, one) y = ScatterElements<axis = 2>(a, i, b)", (2, 5, 4), (2, 1, 4)),
    ("y = GatherND(a, pairs)", (3, 7, 4), (1,)),
    ("y = GatherND<batch_dims = 1>(a, pairs)", (2, 7, 7, 4), (1,)),
    ("y = Attention(a, a, a, b)", (2, 4, 5, 4), (5, 5)),
    ("y = RotaryEmbedding(a, b, b)", (2, 4, 5, 4), (2, 5, 2)),
    ("y = RotaryEmbedding<num_heads = 2>(a, b, b)", (2, 5, 8), (2, 5, 2)),
    ("y = RotaryEmbedding<interleaved = 1>(a, b, b, spots)", (2, 4, 5, 4), (7, 2)),
    ("y = Conv(a, b)", (2, 3, 4), (5, 3, 1)),
    ("t = GlobalAveragePool(a) y = Sub(a, t)", (2, 5, 4), (1,)),
    ("t = GlobalMaxPool(a) y = Sub(a, t)", (2, 5, 4), (1,)),
]
INTEGERS: dict[str, Any] = {"zero": [0], "one": [1], "two": [4], "five": [5], "pair": [[1]]}
INTEGERS |= {"three_pairs": [[0, 4], [1, 0], [0, 1]], "spots": [[6, 0, 2, 2, 1], [0, 1, 2, 3, 4]]}
INTEGERS["pairs"] = [[[0, 4], [1, 0], [0, 1], [2, 6], [1, 3]], [[1, 4], [-1, 0], [2, -1], [0, 1], [2, 2]]]


@pytest.mark.parametrize(("nodes", "first", "second"), RULES)
@pytest.mark.parametrize("cut", [{0: [1]}, {1: [0]}, {1: [3, 1]}, {2: [2, 0]}, {0: [1], 2: [1, 2, 3]}])
def test_a_part_of_each_operator_is_that_part_of_the_whole(
    nodes: str, first: tuple[int, ...], second: tuple[int, ...], cut: dict[int, list[int]]
) -> None:
    rng = np.random.default_rng(0)
    gathers, name = "", "y"
    for axis, places in cut.items():
        gathers += f"c{axis} = Constant<value_ints = {places}>() p{axis} = Gather<axis = {axis}>({name}, c{axis})\n"
        name = f"p{axis}"
    original = parse(
        f"""<ir_version: 10, opset_import: ["": 23]> g (float{[*first]} a, float{[*second]} b) => (float {name}) {{
            {nodes}
            {gathers} }}""".replace("'", '"'),
        **INTEGERS,
        others=rng.integers(0, 3, (2, 5, 4)),
        k=rng.random((2, 5, 1)) < 0.5,
    )
    feeds = {"a": rng.standard_normal(first), "b": rng.random(second)}
    check_equal(original, with_read_rows_alone(original), feeds)


def test_a_norm_of_tf2onnx_is_computed_for_the_row_that_is_read() -> None:
    """Its mean is a GlobalAveragePool of (batch, tokens, features)."""
    original = parse(
        """<ir_version: 8, opset_import: ["": 15]> g (float[batch, seq, 4] x) => (float y)
        { h = MatMul(x, w) mean = GlobalAveragePool(h) c = Sub(h, mean) y = Gather<axis = 1>(c, one) }""",
        w=np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32),
        one=1,
    )
    done = optimise(original, passes=["read-rows"], sizes=SIZES)
    assert SIZES["seq"] * done.steps[-1].macs == done.macs
    check_equal(original, done.model, {"x": np.random.default_rng(1).random((2, 3, 4), np.float32)})


def test_an_einsum_of_a_single_row_moves_texts_one_by_one() -> None:
    """As ProphetNet's encoder for a row that is read: only a size that meets another one is repeated."""
    for texts, found in [("1", {0: 0, 1: 0}), ("batch", None)]:
        original = parse(
            f"""<ir_version: 8, opset_import: ["": 17]>
            g (float[batch, 1, 4] a, float[batch, {texts}, 3, 4] b) => (float y)
            {{ y = Einsum<equation = "bik,bijk->bij">(a, b) }}"""
        )
        graph = prepared(original).model.graph
        (node,) = graph
        assert input_axes(Shapes(graph), node, node.outputs[0], 0) == found


@pytest.mark.parametrize("nodes", ["i = ArgMax<axis = 2>(a)", "t, i = TopK(a, two)", "i = ArgMin<axis = -1>(a)"])
def test_texts_of_a_router_s_choice_stay_apart(nodes: str) -> None:
    original = parse(
        f"""<ir_version: 8, opset_import: ["": 17]> g (float[batch, seq, 4] a) => (int64 i) {{ {nodes} }}""",
        two=np.array([2]),
    )
    graph = prepared(original).model.graph
    (node,) = graph
    assert [input_axes(Shapes(graph), node, node.outputs[-1], axis) for axis in (0, 1, 2)] == [{0: 0}, {0: 1}, None]


def test_the_last_of_fewer_places_is_not_the_last_row() -> None:
    original = parse(
        """<ir_version: 8, opset_import: ["": 17]> g (float[b, s, 4] a, int64[b, t, 4] i) => (float y)
        { made = MatMul(a, w) y = GatherElements<axis = 2>(made, i) }""",
        w=np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32),
    )
    feeds = {"a": np.random.default_rng(1).standard_normal((2, 5, 4)), "i": np.ones((2, 3, 4), np.int64)}
    before, after = (evaluate(each, feeds)[0] for each in (original, optimise(original, ["y[:,-1]"]).model))
    np.testing.assert_allclose(after, before[:, -1], rtol=1e-12)


HALVES = {"w": np.arange(16, dtype=np.float32).reshape(4, 4) / 16, "zero": np.array(0)}
ROWS = '<ir_version: 8, opset_import: ["": 17]> g (float[n, s, 4] a) => '


SPREAD = """made = MatMul(a, w) one_stream = Unsqueeze(made, nought) sizes = Shape(one_stream)
    kept = Slice(sizes, first, end) three = Concat<axis = 0>(streams, kept)
    spread = Expand(one_stream, three) repeated = Tile(one_stream, thrice) both = Add(spread, repeated)
    other = MatMul(both, w) updates = Gather<axis = 0>(other, two)
    scattered = ScatterND(both, numbers, updates) mean = ReduceMean<keepdims = 0>(scattered, nought)
    y = Gather<axis = 1>(mean, last)"""
FILLED = """sizes = Shape<end = 2>(a) zeros = ConstantOfShape<value = int64[1] {0}>(sizes) kinds = Gather(table, zeros)
    tokens = Add(a, kinds) made = MatMul(tokens, w) y = Gather<axis = 1>(made, zero)"""
NAMED = "made = MatMul(a, w) row = Slice(made, none, ends, axes) y = Squeeze(row, first)"
FAR_AXIS = 2**31 - 1
LISTS: dict[str, Any] = {"nought": [0], "first": [1], "end": [9], "streams": [3], "thrice": [3, 1, 1, 1], "two": [1, 2]}
LISTS |= {"numbers": [[0], [2]], "last": -1, "none": [0, 0, 0], "ends": [FAR_AXIS, 1, FAR_AXIS], "axes": [0, 1, 2]}


@pytest.mark.parametrize(
    ("nodes", "opset", "times"),
    [
        (FILLED, 17, 24),  # as the older exporter makes absent token_type_ids
        (SPREAD, 18, 32),  # as AltUp of Gemma 3n; of three streams before the batch two are read again
        (NAMED, 17, 24),  # as TensorFlow's exporter writes x[:, 0]: axes are named that are not cut
    ],
)
def test_a_row_of_24_is_computed_alone(nodes: str, opset: int, times: int) -> None:
    table = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    original = parse(ROWS.replace("17", str(opset)) + f"(float[n, 4] y) {{ {nodes} }}", table=table, **LISTS, **HALVES)
    rewritten = rewrite(original, sizes={"n": 1, "s": 24})
    assert rewritten.steps[-1].macs * times == rewritten.macs
    assert proved(original, rewritten.model).error < 1e-13


JOINED = "tokens = Concat<axis = 1>(class, a) made = MatMul(tokens, w) y = Gather<axis = 1>(made, {})"
LESS = """sizes = Shape<start = 1>(a) less = Sub(sizes, six_four) none = Equal(less, zeros)
    both = Where(none, six_four, zeros) shift = Cast<to = 1>(both) made = MatMul(a, w)
    row = Gather<axis = 1>(made, zero) few = ReduceSum<keepdims = 0>(shift) y = Add(row, few)"""
AT_MOST_FOUR = """cut = Slice(a, start, four, one) made = MatMul(cut, w) sizes = Shape(cut) rows = Gather(sizes, one)
    number = Cast<to = 1>(rows) all = ReduceSum<keepdims = 0>(made, one) mean = Div(all, number)
    row = Gather<axis = 1>(made, zero) y = Add(mean, row)"""


@pytest.mark.parametrize(
    ("nodes", "sizes"),
    [
        (JOINED.format("ends"), [(1, 5)]),  # first and last of joined tokens are read of both parts
        (JOINED.format("turned_ends"), [(1, 5)]),
        (LESS, [(2, 6)]),  # a size less a number may be 0
        (AT_MOST_FOUR, [(2, 1), (2, 2), (2, 4), (2, 7)]),  # a cut of at most four rows may have fewer
    ],
)
def test_parts_whose_sizes_differ_from_call_to_call(nodes: str, sizes: list[tuple[int, int]]) -> None:
    numbers: dict[str, Any] = {"ends": [0, -1], "turned_ends": [-1, 0], "six_four": [6, 4], "zeros": [0, 0]}
    numbers |= {"start": [0], "one": [1], "four": [4]}
    rng = np.random.default_rng(0)
    numbers["class"] = rng.standard_normal((1, 2, 4)).astype(np.float32)
    original = parse(ROWS + f"(float y) {{ {nodes} }}", **numbers, **HALVES)
    rewritten = with_read_rows_alone(original), optimise(original).model
    for texts, length in sizes:
        feeds = {"a": rng.standard_normal((texts, length, 4))}
        for each in rewritten:
            check_equal(original, each, feeds)


@pytest.mark.parametrize(
    ("rows", "made"),
    [([1, 0], 2), ([-2, -1], 2), ([0, -2, 3], 3), ([0, 4], 24), ([-5, -1], 24)],  # of no token there are four rows
)
def test_rows_that_tokens_have_at_any_length_are_computed_alone(rows: list[int], made: int) -> None:
    """Of classes before and behind the tokens, as a network of pictures of any size has them."""
    nodes = "all = Concat<axis = 1>(first, a, first) two = MatMul(all, w) y = Gather<axis = 1>(two, rows)"
    rng = np.random.default_rng(0)
    given = ROWS.replace("a) =>", "a, float[n, 2, 4] first) =>")
    original = parse(f"{given} (float y) {{ {nodes} }}", rows=rows, **HALVES)
    rewritten = optimise(original, passes=["read-rows"], sizes={"n": 1, "s": 20})
    assert rewritten.steps[-1].macs == made * 16
    for length in (0, 1, 5):
        if length or made < 24:
            feeds = {"a": rng.standard_normal((2, length, 4)), "first": rng.standard_normal((2, 2, 4))}
            check_equal(original, rewritten.model, feeds)


@pytest.mark.parametrize(("start", "end", "rows"), [(0, 3, 3), (1, 3, 2), (-3, FAR, 3), (0, 4, None), (-4, -1, None)])
def test_a_cut_has_a_known_size_where_joined_rows_are_always_enough(start: int, end: int, rows: int | None) -> None:
    """Three register tokens before the others; a fourth token exists only in some calls."""
    nodes = """joined = Concat<axis = 1>(registers, a) all = ReduceMean<axes = [1]>(joined)
        tokens = Add(joined, all) made = MatMul(tokens, w) read = Slice(made, start, end, one)
        y = ReduceMax<axes = [1], keepdims = 0>(read)"""
    rng = np.random.default_rng(0)
    given = {"start": np.array([start]), "end": np.array([end]), "one": np.array([1])} | HALVES
    given["registers"] = rng.standard_normal((1, 3, 4)).astype(np.float32)
    original = parse(ROWS.replace("n, s", "1, s") + f"(float[1, 4] y) {{ {nodes} }}", **given)
    done = optimise(original, sizes={"s": 24})
    assert done.steps[-1].macs == (rows or 27) * 16
    for length in (1, 5):
        check_equal(original, done.model, {"a": rng.standard_normal((1, length, 4))})


@pytest.mark.parametrize(
    ("outputs", "nodes"),
    [
        ("float[n, 4] y, float[n, 4] z", "y = Gather<axis = 1>(made, zero) z = Identity(y)"),
        ("float[n, 4] y, float[n, 4] z", "r = Gather<axis = 1>(made, zero) y = Identity(r) z = Identity(r)"),
        ("float[n, 4] y, bool[n, s, 4] z", "kept, z = Dropout(a) y = Gather<axis = 1>(made, zero)"),
    ],
)
def test_all_outputs_keep_their_names(outputs: str, nodes: str) -> None:
    original = parse(ROWS + f"({outputs}) {{ made = MatMul(a, w) {nodes} }}", **HALVES)
    rewritten = rewrite(original)
    assert [value.name for value in rewritten.model.graph.outputs] == ["y", "z"]
    assert proved(original, rewritten.model).error < 1e-13


FIRST_TOKEN = "tokens = Slice(a, zero, one, one)"
SCORES = "t = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, t)"


def attention(nodes: str, more: str = "", outputs: str = "", opset: int = 17, tokens: str = FIRST_TOKEN) -> ir.Model:
    """Two heads; `nodes` lead from q, k and v to y."""
    rng = np.random.default_rng(0)
    given = {f"{kind}{name}": rng.standard_normal((8, 8) if kind == "w" else 8) for kind in "wb" for name in "qkv"}
    return parse(
        f"""<ir_version: 10, opset_import: ["": {opset}]> g (float[n, s, 8] a{more}) => (float y{outputs}) {{ {tokens}
            qw = MatMul(tokens, wq) qb = Add(qw, bq) qh = Reshape(qb, heads) q = Transpose<perm = [0, 2, 1, 3]>(qh)
            kw = MatMul(a, wk) kb = Add(kw, bk) kh = Reshape(kb, heads) k = Transpose<perm = [0, 2, 1, 3]>(kh)
            vw = MatMul(a, wv) vb = Add(vw, bv) vh = Reshape(vb, heads) v = Transpose<perm = [0, 2, 1, 3]>(vh)
            {nodes} }}""",
        **{name: array.astype(np.float32) for name, array in given.items()},
        table=rng.standard_normal((2, 8)).astype(np.float32),
        heads=np.array([0, 0, 2, 4]),
        zero=np.array([0]),
        one=np.array([1]),
        pair=np.array([1, 2, 1, 1]),
        twos=np.array([2, 2]),
        any=np.array([-1]),
        four=np.array([4]),
        gain=np.ones(4, np.float32),
        tall=rng.standard_normal((16, 8)).astype(np.float32),
    )


WEIGHED = "p = Softmax(s) y = MatMul(p, v)"
SHARED = "{0}1 = Slice({0}, zero, one, one) {1} = Expand({0}1, pair)"
PARTS = """part = Slice(a, zero, two, two) x = Relu(part) left, right = Split<axis = 2>(part, ones) z = Relu(left)
    made = MatMul(right, single) y = Gather<axis = 1>(made, first)"""


@pytest.mark.parametrize(
    "original",
    [
        attention(f"{SCORES} h = Tanh(s) z = Add(s, h) p = Softmax(z) y = MatMul(p, v)"),
        attention(f"{SCORES} {WEIGHED} z = Sigmoid(s)", outputs=", float z"),
        attention(f"{SCORES} {WEIGHED}", ", int64[n, 2] ids", tokens="tokens = Gather(table, ids)"),
        parse(
            ROWS + f"(float[n, s, 2] x, float[n, s, 1] z, float[n, 1] y) {{ {PARTS} }}",
            **{"zero": [0], "two": [2], "ones": [1, 1], "first": 0},
            single=np.ones((1, 1), np.float32),
        ),
    ],
    ids=["scores read by Tanh", "scores read by Sigmoid", "queries that an input picks", "a Split read whole and cut"],
)
def test_what_is_read_twice_or_differs_stays_exact(original: ir.Model) -> None:
    assert proved(original, rewrite(original).model).error < 1e-13


@pytest.mark.parametrize(
    ("nodes", "outputs", "opset", "reason"),
    [
        ("p = Softmax(s) y = MatMul(p, v)", ", float p", 17, "its weights are an output of the graph"),
        ("p = Softmax(s) y = MatMul(p, v)", "", 11, "expected scores (batch, heads, queries, tokens)"),
        ("y = Attention(q, k, v)", "", 23, "expected (batch, heads, queries, features) inside the graph, and no cache"),
    ],
)
def test_an_attention_that_cannot_be_absorbed_is_named(nodes: str, outputs: str, opset: int, reason: str) -> None:
    """Up to opset 12 a Softmax without an axis joins heads, queries and tokens."""
    original = attention(f"{SCORES} {nodes}", outputs=outputs, opset=opset)
    (step,) = optimise(original, passes=["absorb-queries"]).steps
    assert [refusal.message for refusal in step.refusals] == [reason]


VALUES = "values, 4,608 -> 1,088"
SCORED = "t = Transpose<perm = [0, 1, 3, 2]>(key) s = MatMul(q, t)"
OTHER = "m = MatMul(other, {}) b = Add(m, bk) h = Reshape(b, heads) key = Transpose<perm = [0, 2, 1, 3]>(h)"
OTHER_TOKENS = f"other = Cos(a) {OTHER.format('wk')} {SCORED} {WEIGHED}"


@pytest.mark.parametrize(
    ("nodes", "absorbed"),
    [
        (f"{SCORES} {WEIGHED}", "keys and values, 9,280 -> 2,240"),
        (f"ends, starts = Split<axis = 3>(k, twos) key = Concat<axis = 3>(starts, ends) {SCORED} {WEIGHED}", VALUES),
        (f"key = LayerNormalization(k, gain) {SCORED} {WEIGHED}", VALUES),
        (f"{SCORES} z = Tanh(s) p = Softmax(z) y = MatMul(p, v)", VALUES),
        (
            f"""{SCORES} z = Softmax(s) size = Shape<start = 1, end = 2>(a) sizes = Concat<axis = 0>(any, one, size)
            p = Reshape(z, sizes) wide = Concat<axis = 0>(any, size, four) j = Reshape(v, wide) y = MatMul(p, j)""",
            VALUES,
        ),
        (
            f"{SHARED.format('k', 'key')} {SHARED.format('v', 'value')} {SCORED} p = Softmax(s) y = MatMul(p, value)",
            "keys and values, 5,184 -> 2,240",
        ),
        (OTHER_TOKENS, "keys and values, 9,280 -> 2,240"),
        (
            f"other = Concat<axis = 2>(a, a) {OTHER.format('tall')} {SCORED} {WEIGHED}",
            "keys and values, 13,376 -> 3,328",
        ),
        (f"other = Slice(a, zero, one, zero) {OTHER.format('wk')} {SCORED} {WEIGHED}", VALUES),
    ],
    ids=[
        "made by weights",
        "turned keys",
        "normalised keys",
        "capped scores",
        "joined heads",
        "keys and values that both heads share",
        "keys of other tokens",
        "keys of wider tokens",
        "keys that all texts share",
    ],
)
def test_a_single_query_absorbs_what_weights_make(nodes: str, absorbed: str) -> None:
    rewritten = optimise(original := attention(nodes), passes=["absorb-queries"])
    assert [site.message for site in rewritten.steps[0].sites] == [f"1 query absorbs {absorbed} MACs"]
    assert proved(original, rewritten.model).error < 1e-13


def test_keys_of_the_wrong_tokens_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = attention(OTHER_TOKENS)
    monkeypatch.setattr(Absorber, "_key_tokens", lambda self, keys: self.tokens)
    with pytest.raises(ProofFailed):
        proved(original, optimise(original, passes=["absorb-queries"]).model)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_a_query_without_a_key_gives_what_onnx_runtime_gives(kind: str, tmp_path: Path) -> None:
    original = attention("p = Attention(q, k, v, m) y = Relu(p)", f", {kind}[n, 1, 1, s] m", opset=23)
    rewritten = rewrite(original)
    assert next(step for step in rewritten.steps if step.name == "absorb-queries").sites
    ir.save(original, tmp_path / "plain.onnx")
    ir.save(rewritten.model, tmp_path / "few.onnx")
    seen = np.arange(3 * 5).reshape(3, 1, 1, 5) < 7  # none of the last row
    fills = [np.finfo(np.float32).min, -np.inf] if kind == "float" else [0]
    for fill in fills:
        mask = seen if kind == "bool" else np.where(seen, 0, fill).astype(np.float32)
        feeds = {"a": np.random.default_rng(0).standard_normal((3, 5, 8)).astype(np.float32), "m": mask}
        before, after = (session(tmp_path / name).run(None, feeds)[0] for name in ("plain.onnx", "few.onnx"))
        np.testing.assert_allclose(after, before, atol=1e-5)
        np.testing.assert_allclose(evaluate(original, feeds)[0], before, atol=1e-5)


def test_a_value_of_unknown_shape_is_named() -> None:
    nodes = "made = MatMul(a, weight) y = Reshape(made, shape)"
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] a, int64[k] shape) => (float y) {{ {nodes} }}'
    with pytest.raises(NothingToRewrite, match=r"read-rows: y \(Reshape\): its shape does not follow from the graph"):
        rewrite(parse(text, weight=np.ones((4, 4), np.float32)))


def test_a_single_place_is_one_place() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[n, 4] a) => (float[n, 4] y)'
    weights = {"weight": np.ones((4, 4), np.float32), "v": np.full(4, 2, np.float32)}
    with pytest.raises(NothingToRewrite, match="fold-affine: 1 place rewritten, which saves no multiplication"):
        rewrite(parse(f"{text} {{ made = MatMul(a, weight) y = Mul(made, v) }}", **weights))


def test_an_output_that_nobody_reads_stops_nothing() -> None:
    nodes = "made = MatMul(a, weight) y, , , z = com.microsoft.SkipLayerNormalization(made, made, v)"
    head = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
    text = f"{head} g (float[n, 4] a) => (float[n, 4] y, float[n, 4] z)"
    weights = {"weight": np.ones((4, 4), np.float32), "v": np.ones(4, np.float32)}
    with pytest.raises(NothingToRewrite, match="no multiplying operator computes more than the outputs read"):
        rewrite(parse(f"{text} {{ {nodes} }}", **weights))


def test_a_row_is_read_through_a_graph_deeper_than_python_s_stack() -> None:
    deep = " ".join(f"z{number} = Tanh({f'z{number - 1}' if number else 'a'})" for number in range(400))
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[n, s, 4] a) => (float[n, 4] y)
        {{ {deep} made = MatMul(z399, weight) y = Gather<axis = 1>(made, zero) }}"""
    rewritten = rewrite(parse(text, weight=np.ones((4, 4), np.float32), zero=np.array(0)))
    assert rewritten.steps[-1].macs * 64 == rewritten.macs


TABLED = """<ir_version: 8, opset_import: ["": 18]> g (float[b, n, 4] x) => (float[b, n, 4] y) {
    size = Shape<start = 1, end = 2>(x) start = START rows = Slice(table, start, size, zero)
    part = Slice(rows, zero, size, one)
    keys = Transpose<perm = [0, 2, 1]>(x) scores = MatMul(x, keys) seen = Where(part, scores, low) y = MatMul(seen, x)
}"""


@pytest.mark.parametrize("start", ["Identity(zero)", "Sub(size, size)"])
def test_the_row_of_a_mask_that_is_cut_from_a_table_has_a_known_size(start: str) -> None:
    """As both exporters write GPT-Neo."""
    numbers = {"zero": np.array([0]), "one": np.array([1]), "low": np.float32(0)}
    original = parse(TABLED.replace("START", start), table=np.tri(99, dtype=bool), **numbers)
    rewritten = optimise(original, ["y[:,-1]"], ["read-rows"]).model
    shapes = {value.name: str(value.shape) for node in rewritten.graph for value in node.outputs}
    assert shapes["part_rows"] == "[1,Min(99, n)]"
    assert proved(original, rewritten, ["y[:,-1]"]).error < 1e-13
