"""Random networks, of parts as exporters write them: rewritten or packed, they answer as before for any mask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import parse
from numpy.typing import NDArray
from test_onnx_operators import runner
from test_pack_faults import forget_first_token, forget_zeros

from export.compiler.analyses.token_mixing import OF_ANOTHER
from export.compiler.errors import NothingToRewrite
from export.compiler.operators.boxes import Box
from export.compiler.passes import PASSES, carry_biases, packed_loop_body
from export.compiler.passes.materialise_parts import Materialiser
from export.compiler.pipeline import optimise, rewrite
from export.compiler.proof.masks import MANY, draw_masks

Array = NDArray[Any]

WIDE, HEADS, INNER, WORDS, LONGEST = 8, 2, 12, 20, 64
SIZES = [(6, 7), (1, 1), (1, 5), (3, 1), (5, 4), (7, 13), (1, 40), (0, 3)]  # texts, tokens
FAR = -1e30  # in float32, of a weight that is 0
KINDS = {"int64": 7, "int32": 6, "bool": 9, "float": 1}  # of a mask -> ONNX's number
NUMPY = {"int64": np.int64, "int32": np.int32, "bool": np.bool_, "float": np.float32}


@dataclass
class Drawn:
    """Nodes that were drawn. `inputs`: name -> kind, all (texts, tokens), and of x also WIDE features.

    `ids` and `mask`: the values that have the tokens' number and say which are shown. `read`: what the user reads of y.
    """

    rng: np.random.Generator
    inputs: dict[str, str] = field(default_factory=dict)
    nodes: list[str] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    norms: list[str] = field(default_factory=lambda: ["layer", "layer", "rms", "batch", "scale", "none"])
    ids: str = "ids"
    mask: str = "mask"
    read: tuple[str, ...] = ()

    def pick(self, choices: Sequence[str]) -> str:
        made = choices[int(self.rng.integers(len(choices)))]
        self.words.append(made)
        return made

    def add(self, operator: str, *inputs: str) -> str:
        return self.several(1, operator, *inputs)[0]

    def several(self, count: int, operator: str, *inputs: str) -> list[str]:
        outs = [f"v{len(self.nodes)}_{k}" for k in range(count)]
        self.nodes.append(f"{', '.join(outs)} = {operator}({', '.join(inputs)})")
        return outs

    def weight(self, *shape: int, mean: float = 0.0) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = (mean + self.rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return name

    def integers(self, *numbers: int) -> str:
        name = "i" + "_".join(map(str, numbers)).replace("-", "m")
        self.weights[name] = np.array(numbers)
        return name

    def number(self, value: float) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.array(value, np.float32)
        return name

    def linear(self, value: str, inside: int, outside: int) -> str:
        if self.pick(["matmul", "matmul", "gemm"]) == "gemm":
            flat = self.add("Reshape", value, self.integers(-1, inside))
            done = self.add("Gemm<transB = 1>", flat, self.weight(outside, inside), self.weight(outside))
            sizes = self.add("Concat<axis = 0>", self.sizes(value), self.integers(outside))
            return self.add("Reshape", done, sizes)
        done = self.add("MatMul", value, self.weight(inside, outside))
        return self.add("Add", done, self.weight(outside)) if self.pick(["bias", "no bias"]) == "bias" else done

    def sizes(self, value: str) -> str:
        return self.add("Shape<start = 0, end = 2>", value)

    def norm(self, value: str) -> str:
        gamma, beta = self.weight(WIDE, mean=1.0), self.weight(WIDE)
        match self.pick(self.norms):
            case "layer":
                return self.add("LayerNormalization<axis = -1>", value, gamma, beta)
            case "rms":
                squares = self.add("ReduceMean", self.add("Mul", value, value), self.integers(-1))
                size = self.add("Sqrt", self.add("Add", squares, self.number(1e-6)))
                return self.add("Mul", self.add("Div", value, size), gamma)
            case "batch":
                turned = self.add("Transpose<perm = [0, 2, 1]>", value)
                return self.add("Transpose<perm = [0, 2, 1]>", self.batch_norm(turned, gamma, beta))
            case "rows":
                flat = self.add("Reshape", value, self.integers(-1, WIDE))
                return self.add("Reshape", self.batch_norm(flat, gamma, beta), self.add("Shape", value))
            case "scale":
                return self.add("Add", self.add("Mul", value, gamma), beta)
        return value

    def batch_norm(self, value: str, gamma: str, beta: str) -> str:
        self.weights["spread"] = np.linspace(0.5, 2, WIDE).astype(np.float32)
        return self.add("BatchNormalization", value, gamma, beta, self.weight(WIDE), "spread")


def embedded(net: Drawn) -> str:
    """Tokens (texts, tokens, WIDE), of ids, kinds of a text and places."""
    net.inputs["ids"] = net.pick(["int64", "int32"])
    value = net.add("Gather<axis = 0>", net.weight(WORDS, WIDE), "ids")
    if net.pick(["kinds", "no kinds"]) == "kinds":
        net.inputs["kinds"] = net.inputs["ids"]
        value = net.add("Add", value, net.add("Gather<axis = 0>", net.weight(2, WIDE), "kinds"))
    match net.pick(["absolute", "absolute", "counted", "nowhere"]):
        case "absolute":
            value = placed(net, value)
        case "counted":
            table = net.weight(LONGEST + 1, WIDE)
            number = net.add("Cast<to = 7>", net.add("Cast<to = 6>", "mask"))
            counted = net.add("Mul", net.add("CumSum", number, net.integers(1)), number)
            value = net.add("Add", value, net.add("Gather<axis = 0>", table, counted))
    return value


def placed(net: Drawn, value: str) -> str:
    return net.add("Add", value, net.add("Gather<axis = 0>", net.weight(LONGEST + 1, WIDE), places(net)))


def places(net: Drawn) -> str:
    length = net.add("Squeeze", net.add("Shape<start = 1, end = 2>", net.ids))
    net.weights |= {"nought": np.array(0), "single": np.array(1)}
    return net.add("Range", "nought", length, "single")


def shown(net: Drawn) -> str:
    """bool (texts, 1, 1 or tokens, tokens): which keys a query sees."""
    keys = net.add("Unsqueeze", net.add("Cast<to = 9>", net.mask), net.integers(1, 2))
    kind = net.pick(["keys", "keys", "keys", "causal", "local", "pairs"])
    if kind == "pairs":  # hidden queries see nothing
        queries = net.add("Unsqueeze", net.add("Cast<to = 9>", net.mask), net.integers(1, 3))
        return net.add("And", keys, queries)
    if kind in ("causal", "local"):
        row, column = (net.add("Unsqueeze", places(net), net.integers(axis)) for axis in (0, 1))
        apart = net.add("Sub", row, column)
        far = apart if kind == "causal" else net.add("Abs", apart)
        return net.add("And", keys, net.add("LessOrEqual", far, "nought" if kind == "causal" else "single"))
    return keys


def masking(net: Drawn) -> Callable[[str], str]:
    """Scores -> weights."""
    seen, low = shown(net), net.number(FAR)
    kind = net.pick(["added", "added", "less one", "where", "guarded"])
    if kind == "added":
        bias = net.add("Where", seen, net.number(0), low)
        return lambda scores: net.add("Softmax<axis = -1>", net.add("Add", scores, bias))
    if kind == "less one":
        rest = net.add("Sub", net.number(1), net.add("Cast<to = 1>", seen))
        bias = net.add("Mul", rest, low)
        return lambda scores: net.add("Softmax<axis = -1>", net.add("Add", scores, bias))
    if kind == "where":
        return lambda scores: net.add("Softmax<axis = -1>", net.add("Where", seen, scores, low))
    infinite, zero = net.number(-np.inf), net.number(0)

    def guarded(scores: str) -> str:
        weights = net.add("Softmax<axis = -1>", net.add("Where", seen, scores, infinite))
        return net.add("Where", net.add("IsNaN", weights), zero, weights)

    return guarded


def attention(net: Drawn, value: str, weigh: Callable[[str], str]) -> str:
    size = INNER // HEADS
    queries, keys, values = projections(net, value, size)
    if net.pick(["turns", "stays", "stays"]) == "turns":  # rotary
        angle = net.add("Unsqueeze", net.add("Cast<to = 1>", places(net)), net.integers(1))
        angles = net.add("Mul", angle, net.weight(size))
        queries, keys = (rotated(net, each, angles, size) for each in (queries, keys))
    how = net.pick(["scores times", "scores times", "scores by", "queries times", "no scale"])
    if how == "queries times":
        queries = net.add("Mul", queries, net.number(0.5))
    scores = net.add("MatMul", queries, net.add("Transpose<perm = [0, 1, 3, 2]>", keys))
    if how.startswith("scores"):
        scores = net.add("Mul" if how == "scores times" else "Div", scores, net.number(0.4))
    if net.pick(["biased", "plain", "plain"]) == "biased":  # by the distance of two tokens
        row, column = (net.add("Unsqueeze", places(net), net.integers(axis)) for axis in (0, 1))
        apart = net.add("Add", net.add("Sub", row, column), net.integers(LONGEST))
        table = net.add("Gather<axis = 0>", net.weight(2 * LONGEST, HEADS), apart)
        bias = net.add("Unsqueeze", net.add("Transpose<perm = [2, 0, 1]>", table), net.integers(0))
        scores = net.add("Add", scores, bias)
    mixed = net.add("Transpose<perm = [0, 2, 1, 3]>", net.add("MatMul", weigh(scores), values))
    return net.linear(net.add("Reshape", mixed, net.integers(0, 0, INNER)), INNER, WIDE)


def projections(net: Drawn, value: str, size: int) -> list[str]:
    """Queries, keys and values (texts, heads, tokens, size)."""
    kind = net.pick(["apart", "split", "timm"])
    if kind == "timm":
        joint = net.add("Reshape", net.linear(value, WIDE, 3 * INNER), net.integers(0, 0, 3, HEADS, size))
        turned = net.add("Transpose<perm = [2, 0, 3, 1, 4]>", joint)
        net.weights |= {f"part{k}": np.array(k) for k in range(3)}
        return [net.add("Gather<axis = 0>", turned, f"part{k}") for k in range(3)]
    if kind == "split":
        parts = net.several(3, "Split<axis = -1, num_outputs = 3>", net.linear(value, WIDE, 3 * INNER))
    else:
        asked = placed(net, value) if net.pick(["placed", "plain", "plain"]) == "placed" else value  # as in DETR
        parts = [net.linear(tokens, WIDE, INNER) for tokens in (asked, asked, value)]
    heads = net.integers(0, 0, HEADS, size)
    return [net.add("Transpose<perm = [0, 2, 1, 3]>", net.add("Reshape", part, heads)) for part in parts]


def rotated(net: Drawn, value: str, angles: str, size: int) -> str:
    left, right = net.several(2, "Split<axis = -1, num_outputs = 2>", value)
    turned = net.add("Concat<axis = -1>", net.add("Neg", right), left)
    straight, across = net.add("Mul", value, net.add("Cos", angles)), net.add("Mul", turned, net.add("Sin", angles))
    return net.add("Add", straight, across)


def feed_forward(net: Drawn, value: str) -> str:
    if net.pick(["gated", "plain"]) == "gated":
        left, right = net.several(2, "Split<axis = -1, num_outputs = 2>", net.linear(value, WIDE, 2 * INNER))
        inner = net.add("Mul", net.add("Sigmoid", left), right)
    else:
        inner = net.add("Gelu", net.linear(value, WIDE, INNER))
    return net.linear(inner, INNER, WIDE)


def block(net: Drawn, value: str, weigh: Callable[[str], str]) -> str:
    before = net.pick(["before", "behind"]) == "before"
    for attends in (True, False):
        given = net.norm(value) if before else value
        done = net.add("Add", value, attention(net, given, weigh) if attends else feed_forward(net, given))
        value = done if before else net.norm(done)
    if net.pick(["as it is", "as it is", "as it is", "times mask"]) == "times mask":
        value = net.add("Mul", value, as_weights(net))
    return value


def as_weights(net: Drawn) -> str:
    """float (texts, tokens, 1)"""
    return net.add("Unsqueeze", net.add("Cast<to = 1>", "mask"), net.integers(2))


POOLS = [
    "first",
    "mean",
    "mean of some",
    "sum",
    "last",
    "last flat",
    "highest",
    "attentive",
    "tokens",
    "two",
    "at end",
    "greatest id",
]


def pooled(net: Drawn, value: str, pool: str) -> str:
    match pool:
        case "first" | "at end":
            place = net.integers(0 if pool == "first" else -1)
            return net.add("Squeeze", net.add("Gather<axis = 1>", value, place), net.integers(1))
        case "mean" | "mean of some" | "sum":
            weights = as_weights(net)
            total = net.add("ReduceSum<keepdims = 0>", net.add("Mul", value, weights), net.integers(1))
            count = net.add("ReduceSum<keepdims = 0>", weights, net.integers(1))
            if pool == "mean":
                count = net.add("Max", count, net.number(1e-9))
            return total if pool == "sum" else net.add("Div", total, count)
        case "last" | "last flat":
            number = net.add("Cast<to = 7>", net.add("Cast<to = 6>", "mask"))
            counted = net.add("ReduceSum<keepdims = 0>", number, net.integers(1))
            last = net.add("Sub", counted, net.integers(1))
            return picked(net, value, last, "pairs" if pool == "last" else "flat")
        case "greatest id":  # as CLIP's end of a text
            shown = net.add("Mul", "ids", net.add(f"Cast<to = {KINDS[net.inputs['ids']]}>", "mask"))
            last = net.add("ArgMax<axis = 1, keepdims = 0>", shown)
            return picked(net, value, last, net.pick(["pairs", "flat"]))
        case "highest":
            shown = net.add("Cast<to = 9>", as_weights(net))
            filled = net.add("Where", shown, value, net.number(FAR))
            return net.add("ReduceMax<keepdims = 0>", filled, net.integers(1))
        case "attentive":
            scores = net.add("MatMul", net.add("Tanh", value), net.weight(WIDE, 1))
            shown = net.add("Cast<to = 9>", as_weights(net))
            weights = net.add("Softmax<axis = 1>", net.add("Where", shown, scores, net.number(FAR)))
            return net.add("ReduceSum<keepdims = 0>", net.add("Mul", weights, value), net.integers(1))
        case "two":
            return net.add("Add", pooled(net, value, "first"), pooled(net, value, "mean"))
    return value


def picked(net: Drawn, value: str, last: str, how: str) -> str:
    net.weights |= {"nought": np.array(0), "single": np.array(1)}
    rows = net.add("Range", "nought", net.add("Squeeze", net.add("Shape<start = 0, end = 1>", "ids")), "single")
    if how == "pairs":
        pair = [net.add("Unsqueeze", each, net.integers(-1)) for each in (rows, last)]
        return net.add("GatherND", value, net.add("Concat<axis = -1>", *pair))
    starts = net.add("Mul", rows, net.add("Shape<start = 1, end = 2>", "ids"))
    flat = net.add("Reshape", value, net.integers(-1, WIDE))
    return net.add("Gather<axis = 0>", flat, net.add("Add", starts, last))


def normed(net: Drawn, value: str) -> str:
    """Of length 1, as sentence-transformers write it."""
    kind = net.pick(["any length", "any length", "divided", "LpNormalization"])
    if kind == "LpNormalization":
        return net.add("LpNormalization<axis = -1>", value)
    if kind == "divided":
        size = net.add("Clip", net.add("ReduceL2", value, net.integers(-1)), net.number(1e-12))
        return net.add("Div", value, net.add("Expand", size, net.add("Shape", value)))
    return value


def encoder(seed: int) -> Drawn:
    net = Drawn(np.random.default_rng(seed))
    net.inputs["mask"] = net.pick([*KINDS])
    value = embedded(net)
    if net.pick(["normed", "plain"]) == "normed":
        value = net.norm(value)
    weigh = masking(net)
    for _ in range(int(net.rng.integers(1, 4))):
        value = block(net, value, weigh)
    pool = net.pick(POOLS)
    net.read = ("y[mask]",) if pool == "tokens" else ()
    value = pooled(net, value, pool)
    if net.pick(["head", "bare"]) == "head":
        value = net.add("Add", net.add("MatMul", value, net.weight(WIDE, 3)), net.weight(3))
    value = normed(net, value)
    net.nodes.append(f"y = Identity({value})")
    return net


def model(net: Drawn) -> ir.Model:
    sizes = {"x": f"b, s, {WIDE}"}
    given = ", ".join(f"{kind}[{sizes.get(name, 'b, s')}] {name}" for name, kind in net.inputs.items())
    nodes = "\n".join(net.nodes)
    return parse(f'<ir_version: 8, opset_import: ["": 20]> g ({given}) => (float y) {{ {nodes} }}', **net.weights)


def transformer(seed: int) -> Drawn:
    """Layers of any kind on tokens that are given, with or without a mask and a token that all texts share."""
    net = Drawn(np.random.default_rng(seed), {"x": "float", "mask": "bool"}, ids="mask")
    net.norms.append("rows")  # packed it is refused
    value = "x"
    weigh: Callable[[str], str] = partial(net.add, "Softmax<axis = -1>")
    if net.pick(["class token", "tokens alone"]) == "class token":
        texts, one, wide = net.add("Shape<start = 0, end = 1>", "x"), net.integers(1), net.integers(WIDE)
        token = net.add("Expand", net.weight(1, 1, WIDE), net.add("Concat<axis = 0>", texts, one, wide))
        yes = net.add("Cast<to = 9>", net.add("Expand", one, net.add("Concat<axis = 0>", texts, one)))
        value = net.add("Concat<axis = 1>", token, "x")
        net.ids = net.mask = net.add("Concat<axis = 1>", yes, "mask")
    if net.pick(["a mask", "a mask", "a mask", "no mask"]) == "a mask":
        weigh = masking(net)
    for _ in range(int(net.rng.integers(1, 4))):
        for layer in net.pick(["attention", "attention, feed forward", "feed forward"]).split(", "):
            given = net.norm(value)
            done = attention(net, given, weigh) if layer == "attention" else feed_forward(net, given)
            value = net.add("Add", value, done) if net.pick(["residual", "residual", "none"]) == "residual" else done
    value = net.norm(value)
    net.weights |= {"row": np.array(0), "axis": np.array([1])}
    end = net.pick(["Gather<axis = 1>({}, row)", "ReduceMean<keepdims = 0>({}, axis)", "Relu({})"])
    net.nodes.append(f"y = {end.format(value)}")
    return net


def check_answers(net: Drawn, before: ir.Model, after: ir.Model, seed: int, sizes: list[tuple[int, int]]) -> None:
    plain, made = runner(ir.to_proto(before)), runner(ir.to_proto(after))
    held = {value.name for value in made.get_inputs()}
    for number, (texts, tokens) in enumerate(sizes):
        feeds = draw(net, texts, tokens, seed + number)
        words = f"network {seed} at {texts, tokens}: {', '.join(net.words)}"
        (expected,) = plain.run(None, feeds)
        (found,) = made.run(None, {name: array for name, array in feeds.items() if name in held})
        if net.read:
            expected = np.where(feeds["mask"].astype(bool)[..., None], expected, 0)
        assert found.shape == expected.shape, f"{words}: {expected.shape} and {found.shape}"
        size = np.abs(expected[np.isfinite(expected)]).max(initial=1)
        assert np.allclose(found, expected, rtol=0, atol=1e-4 * size, equal_nan=True), words


def check_packed(seed: int) -> str:
    """Why the encoder was not packed; empty if it was."""
    net = encoder(seed)
    plain = model(net)
    passes = [*PASSES] if net.rng.integers(2) else []
    try:
        packed = rewrite(plain, net.read, passes, {"b": 1, "s": 24}, "mask").model
    except NothingToRewrite as refused:
        return str(refused)
    check_answers(net, plain, packed, seed, [*SIZES, MANY])
    return ""


def check_rewritten(seed: int) -> list[str]:
    """The passes that changed something."""
    net = transformer(seed)
    plain = model(net)
    costs = [(1, 4), (1, 64), (8, 16)][int(net.rng.integers(3))]
    done = optimise(plain, passes=[*PASSES], sizes=dict(zip(("b", "s"), costs, strict=True)))
    check_answers(net, plain, done.model, seed, SIZES)
    return [step.name for step in done.steps if step.sites]


def draw(net: Drawn, texts: int, tokens: int, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    most = {"ids": WORDS, "kinds": 2}
    feeds: dict[str, Array] = {name: rng.integers(0, most.get(name, 2), (texts, tokens)) for name in net.inputs}
    if texts:
        feeds["mask"] = draw_masks(texts, tokens, seed)
    if "x" in feeds:
        feeds["x"] = rng.standard_normal((texts, tokens, WIDE))
    return {name: array.astype(NUMPY[net.inputs[name]]) for name, array in feeds.items()}


@pytest.mark.slow
def test_no_random_encoder_answers_otherwise() -> None:
    refused = Counter(reason.rpartition(": ")[2] for reason in map(check_packed, range(60)))
    packed = refused.pop("")
    assert packed > 50
    assert refused.keys() <= {
        "it may read hidden tokens",  # also a bias by distance, of a row that each text chooses
        OF_ANOTHER,
    }


@pytest.mark.slow
def test_no_random_transformer_answers_otherwise() -> None:
    changed = {name for names in map(check_rewritten, range(80)) for name in names}
    assert changed >= {"fold-affine", "read-rows", "absorb-queries", "carry-biases", "split-products", "tidy"}


def join_all_texts(patch: pytest.MonkeyPatch) -> None:
    right = packed_loop_body.Body.__init__

    def wrong(self: packed_loop_body.Body, *given: Any) -> None:
        right(self, *given)
        self.tokens.joining.clear()

    patch.setattr(packed_loop_body.Body, "__init__", wrong)


def shift_tokens(patch: pytest.MonkeyPatch) -> None:
    """Tokens lose a constant that no sum before them takes off."""
    patch.setattr(carry_biases, "_subtract", lambda shifts, value, array: shifts.shift(value, array))


def turn_parts(patch: pytest.MonkeyPatch) -> None:
    right = Materialiser._constant_part

    def wrong(self: Materialiser, value: ir.Value, wanted: Box) -> ir.Value:
        return right(self, value, tuple((axis, (*places[1:], places[0])) for axis, places in wanted))

    patch.setattr(Materialiser, "_constant_part", wrong)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "plant"),
    [
        *((check_packed, plant) for plant in (join_all_texts, forget_first_token, forget_zeros)),
        *((check_rewritten, plant) for plant in (shift_tokens, turn_parts)),
    ],
)
def test_a_planted_fault_is_found(
    check: Callable[[int], object], plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="network"):
        list(map(check, range(60)))
