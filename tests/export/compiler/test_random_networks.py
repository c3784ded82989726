"""Random transformers, of parts as exporters write them: no pass changes an answer, of empty batches either."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import parse
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_onnx_operators import runner

from export.compiler.operators.boxes import Box
from export.compiler.passes import carry_biases
from export.compiler.passes.materialise_parts import Materialiser
from export.compiler.pipeline import PASSES, optimise

WIDE, HEADS, INNER = 8, 2, 16
SIZES = [(2, 5), (1, 1), (3, 2), (4, 4), (0, 3)]  # texts, tokens
HEAD = '<ir_version: 8, opset_import: ["": 20]> g (float[b, n, 8] x, bool[b, n] shown) => (float y)'


@dataclass
class Network:
    """Nodes that were drawn; the number of a value makes its name."""

    nodes: list[str] = field(default_factory=list)
    hidden: str = ""  # bool (b, 1, 1, n), and the same as numbers to add
    lowered: str = ""
    weights: dict[str, NDArray[Any]] = field(default_factory=dict)
    count: int = 0

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def add(self, call: str) -> str:
        self.nodes.append(f"{(out := self.name())} = {call}")
        return out

    def weight(self, *shape: int, mean: float = 0.0) -> str:
        """Of about unit gain."""
        name = f"w{len(self.weights)}"
        rng = np.random.default_rng(len(self.weights))
        self.weights[name] = (mean + rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return name

    def linear(self, draw: st.DrawFn, value: str, inside: int, outside: int) -> str:
        if draw(st.sampled_from([False, False, True])):
            flat = self.add(f"Reshape({value}, flat{inside})")
            done = self.add(f"Gemm<transB = 1>({flat}, {self.weight(outside, inside)}, {self.weight(outside)})")
            shape = self.add(f"Shape<start = 0, end = 2>({value})")
            sizes = self.add(f"Concat<axis = 0>({shape}, size{outside})")
            return self.add(f"Reshape({done}, {sizes})")
        done = self.add(f"MatMul({value}, {self.weight(inside, outside)})")
        return self.add(f"Add({done}, {self.weight(outside)})") if draw(st.booleans()) else done


def norm(draw: st.DrawFn, net: Network, value: str) -> str:
    kind = draw(st.sampled_from(["none", "layer", "rows", "channels", "scale"]))
    gamma, beta, mean = net.weight(WIDE, mean=1.0), net.weight(WIDE), net.weight(WIDE)
    if kind == "layer":
        return net.add(f"LayerNormalization<axis = -1>({value}, {gamma}, {beta})")
    if kind == "rows":
        flat = net.add(f"Reshape({value}, flat{WIDE})")
        normed = net.add(f"BatchNormalization({flat}, {gamma}, {beta}, {mean}, spread)")
        shape = net.add(f"Shape({value})")
        return net.add(f"Reshape({normed}, {shape})")
    if kind == "channels":
        turned = net.add(f"Transpose<perm = [0, 2, 1]>({value})")
        normed = net.add(f"BatchNormalization({turned}, {gamma}, {beta}, {mean}, spread)")
        return net.add(f"Transpose<perm = [0, 2, 1]>({normed})")
    if kind == "scale":
        return net.add(f"Add({net.add(f'Mul({value}, {gamma})')}, {beta})")
    return value


def projections(draw: st.DrawFn, net: Network, value: str) -> list[str]:
    """Queries, keys and values (b, heads, n, d)."""
    kind = draw(st.sampled_from(["apart", "split", "timm"]))
    if kind == "timm":
        joint = net.linear(draw, value, WIDE, 3 * INNER)
        turned = net.add(f"Transpose<perm = [2, 0, 3, 1, 4]>({net.add(f'Reshape({joint}, three_heads)')})")
        return [net.add(f"Gather<axis = 0>({turned}, number{k})") for k in range(3)]
    if kind == "split":
        joint = net.linear(draw, value, WIDE, 3 * INNER)
        parts = [net.name() for _ in range(3)]
        net.nodes.append(f"{', '.join(parts)} = Split<axis = -1, num_outputs = 3>({joint})")
    else:
        parts = [net.linear(draw, value, WIDE, INNER) for _ in range(3)]
    return [net.add(f"Transpose<perm = [0, 2, 1, 3]>({net.add(f'Reshape({part}, heads)')})") for part in parts]


def attention(draw: st.DrawFn, net: Network, value: str) -> str:
    queries, keys, values = projections(draw, net, value)
    if draw(st.booleans()):
        queries = net.add(f"Mul({queries}, half)")
    scores = net.add(f"MatMul({queries}, {net.add(f'Transpose<perm = [0, 1, 3, 2]>({keys})')})")
    if draw(st.booleans()):
        scores = net.add(f"Div({scores}, two_point_five)")
    mask = draw(st.sampled_from(["none", "added", "where", "guarded"]))
    if mask != "none":
        low = "minus_infinity" if mask == "guarded" else "lowest"
        call = f"Add({scores}, {net.lowered})" if mask == "added" else f"Where({net.hidden}, {low}, {scores})"
        scores = net.add(call)
    weights = net.add(f"Softmax<axis = -1>({scores})")
    if mask == "guarded":
        weights = net.add(f"Where({net.add(f'IsNaN({weights})')}, zero, {weights})")
    mixed = net.add(f"Transpose<perm = [0, 2, 1, 3]>({net.add(f'MatMul({weights}, {values})')})")
    return net.linear(draw, net.add(f"Reshape({mixed}, joined)"), INNER, WIDE)


def feed_forward(draw: st.DrawFn, net: Network, value: str) -> str:
    if draw(st.booleans()):
        joint = net.linear(draw, value, WIDE, 2 * INNER)
        left, right = net.name(), net.name()
        net.nodes.append(f"{left}, {right} = Split<axis = -1, num_outputs = 2>({joint})")
        inner = net.add(f"Mul({net.add(f'Sigmoid({left})')}, {right})")
    else:
        inner = net.add(f"Gelu({net.linear(draw, value, WIDE, INNER)})")
    return net.linear(draw, inner, INNER, WIDE)


def class_token(net: Network) -> tuple[str, str]:
    """The tokens and which of them are shown, with a token before them that all texts share."""
    batch = net.add("Shape<start = 0, end = 1>(x)")
    token = net.add(f"Expand({net.weight(1, 1, WIDE)}, {net.add(f'Concat<axis = 0>({batch}, one, size{WIDE})')})")
    yes = net.add(f"Expand(true, {net.add(f'Concat<axis = 0>({batch}, one)')})")
    return net.add(f"Concat<axis = 1>({token}, x)"), net.add(f"Concat<axis = 1>({yes}, shown)")


@st.composite
def networks(draw: st.DrawFn) -> Network:
    net = Network()
    value, shown = class_token(net) if draw(st.booleans()) else ("x", "shown")
    net.hidden = net.add(f"Unsqueeze({net.add(f'Not({shown})')}, two_axes)")
    net.lowered = net.add(f"Mul({net.add(f'Cast<to = 1>({net.hidden})')}, lowest)")
    for _ in range(draw(st.integers(1, 3))):
        for layer in draw(st.sampled_from([(attention,), (attention, feed_forward), (feed_forward,)])):
            done = layer(draw, net, norm(draw, net, value))
            value = net.add(f"Add({value}, {done})") if draw(st.sampled_from([True, True, False])) else done
    value = norm(draw, net, value)
    end = draw(st.sampled_from(["Gather<axis = 1>({}, zero_row)", "ReduceMean<keepdims = 0>({}, one)", "Relu({})"]))
    net.nodes.append(f"y = {end.format(value)}")
    return net


def constants() -> dict[str, Any]:
    return {
        "spread": np.linspace(0.5, 2, WIDE).astype(np.float32),
        "half": np.array(0.5, np.float32),
        "two_point_five": np.array(2.5, np.float32),
        "zero": np.array(0, np.float32),
        "lowest": np.array(-50, np.float32),
        "minus_infinity": np.array(-np.inf, np.float32),
        **{"heads": [0, 0, HEADS, INNER // HEADS], "three_heads": [0, 0, 3, HEADS, INNER // HEADS]},
        **{"joined": [0, 0, INNER], "one": [1], "two_axes": [1, 2], "true": True, "zero_row": 0},
        **{f"number{k}": k for k in range(3)},
        **{f"flat{size}": np.array([-1, size]) for size in (WIDE, INNER)},
        **{f"size{size}": np.array([size]) for size in (WIDE, INNER, 2 * INNER, 3 * INNER)},
    }


def check(net: Network, cost_sizes: tuple[int, int]) -> Counter[str]:
    """The passes that changed something."""
    model = parse(f"{HEAD} {{ {' '.join(net.nodes)} }}", **net.weights, **constants())
    done = optimise(model, passes=list(PASSES), sizes=dict(zip(("b", "n"), cost_sizes, strict=True)))
    plain, rewritten = runner(ir.to_proto(model)), runner(ir.to_proto(done.model))
    held = {value.name for value in rewritten.get_inputs()}
    for seed, (texts, tokens) in enumerate(SIZES):
        rng = np.random.default_rng(seed)
        feeds = {
            "x": rng.standard_normal((texts, tokens, WIDE)).astype(np.float32),
            "shown": rng.random((texts, tokens)) < 0.6,
        }
        (expected,) = plain.run(None, feeds)
        (found,) = rewritten.run(None, {name: array for name, array in feeds.items() if name in held})
        words = f"{net.nodes} at {texts, tokens}"
        assert found.shape == expected.shape, f"{words}: {expected.shape} and {found.shape}"
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=1)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * largest, err_msg=words)
    return Counter(step.name for step in done.steps if step.sites)


def search(examples: int, phases: Sequence[Phase] = tuple(Phase)) -> Counter[str]:
    changed: Counter[str] = Counter()

    @settings(max_examples=examples, phases=phases, derandomize=True, database=None, deadline=None)
    @given(networks(), st.sampled_from([(1, 4), (1, 64), (8, 16)]))
    def each(net: Network, cost_sizes: tuple[int, int]) -> None:
        changed.update(check(net, cost_sizes))

    each()
    return changed


@pytest.mark.slow
def test_no_random_network_answers_otherwise() -> None:
    changed = search(100)
    assert changed.keys() >= {"fold-affine", "read-rows", "absorb-queries", "carry-biases", "split-products", "tidy"}


def plant_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens lose a constant that no sum before them takes off."""
    monkeypatch.setattr(carry_biases, "_subtract", lambda shifts, value, array: shifts.shift(value, array))


def plant_part(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Materialiser._constant_part

    def wrong(self: Materialiser, value: ir.Value, wanted: Box) -> ir.Value:
        return right(self, value, tuple((axis, (*places[1:], places[0])) for axis, places in wanted))

    monkeypatch.setattr(Materialiser, "_constant_part", wrong)


@pytest.mark.slow
@pytest.mark.parametrize("plant", [plant_shift, plant_part])
def test_a_planted_fault_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=r" at \("):
        search(100, [Phase.generate])  # nobody reads the smallest example of a planted fault
