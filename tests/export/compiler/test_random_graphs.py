"""Random graphs with two free lengths that may meet: a part that is read never differs from numpy's part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_onnx_operators import part, runner

from export.compiler.errors import BadRequest
from export.compiler.graph.requested_output_parts import Read
from export.compiler.operators import table
from export.compiler.operators.demand_rules import elementwise
from export.compiler.passes import unflatten

Array = NDArray[Any]

WIDE = 4  # features
SIZES = [(2, 5, 3), (1, 1, 1), (2, 1, 4), (2, 4, 1), (1, 3, 3), (3, 2, 2), (4, 4, 4)]
INPUTS = "float[n, s, 4] a, float[n, t, 4] b"
STEPS = [  # with {x}, {z} earlier values, {i} a number, {axis} one of the three axes
    "Relu({x})",
    "Add({x}, {z})",
    "Mul({x}, {z})",
    "Sub({x}, table)",
    "MatMul({x}, w)",
    "Softmax<axis = {axis}>({x})",
    "LayerNormalization<axis = 2>({x}, v)",
    "ReduceMean<keepdims = 1>({x}, axis{axis})",
    "Concat<axis = 1>({x}, {z})",
    "Concat<axis = 1>(row, {z})",
    "Slice({x}, from{i}, to{i}, one)",
    "Slice({x}, from{i}, to{i}, axis{axis})",
    "Gather<axis = {axis}>({x}, places{i})",
    "Where(mask, {x}, {z})",
    "CumSum({x}, first)",
    "Expand({x}, three)",
]
CUTS = [(0, 2), (0, 1), (-1, 1 << 40), (-3, 1 << 40), (1, 1 << 40), (0, -1), (1, 3)]
PLACES = [[0], [-1], [0, -1], [1], [2, 0], [0, 0, 0], [-2]]
TURNS = [
    "t{k} = Transpose<perm = [0, 2, 1]>({x}) m{k} = MatMul({z}, t{k}) p{k} = Softmax(m{k}) {out} = MatMul(p{k}, {x})",
    "h{k} = Reshape({x}, heads) q{k} = Transpose<perm = [0, 2, 1, 3]>(h{k}) g{k} = Relu(q{k}) "
    "u{k} = Transpose<perm = [0, 2, 1, 3]>(g{k}) {out} = Reshape(u{k}, joined)",
    "f{k} = Reshape({x}, flat) g{k} = Gemm<transB = 1>(f{k}, w, v) r{k} = Add(g{k}, f{k}) s{k} = Shape({x}) "
    "{out} = Reshape(r{k}, s{k})",
    "f{k} = Reshape({x}, flat) g{k} = Gemm<alpha = 2.0>(f{k}, w) s{k} = Shape({x}) {out} = Reshape(g{k}, s{k})",
]


def weights() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    cuts = {f"from{i}": np.array([start]) for i, (start, _) in enumerate(CUTS)}
    cuts |= {f"to{i}": np.array([end]) for i, (_, end) in enumerate(CUTS)}
    return {
        "w": rng.standard_normal((WIDE, WIDE)).astype(np.float32),
        "v": rng.standard_normal(WIDE).astype(np.float32),
        "table": rng.standard_normal((1, 1, WIDE)).astype(np.float32),
        "row": rng.standard_normal((1, 2, WIDE)).astype(np.float32),
        "mask": rng.random((1, 1, WIDE)) < 0.5,
        "one": np.array([1]),
        "first": np.array(1),
        "three": np.array([1, 1, WIDE]),
        "heads": np.array([0, 0, 2, 2]),
        "joined": np.array([0, 0, WIDE]),
        "flat": np.array([-1, WIDE]),
        **{f"axis{axis}": np.array([axis]) for axis in range(3)},
        **{f"places{i}": np.array(places) for i, places in enumerate(PLACES)},
        **cuts,
    }


@st.composite
def graphs(draw: st.DrawFn) -> str:
    """The nodes of a graph from a and b to y."""
    values, nodes = ["a", "b"], []
    for number in range(draw(st.integers(1, 6))):
        out = f"x{number}"
        fields = {"x": draw(st.sampled_from(values)), "z": draw(st.sampled_from(values))}
        turn = draw(st.sampled_from([*[None] * 6, *TURNS]))
        if turn is not None:
            nodes.append(turn.format(k=number, out=out, **fields))
        else:
            step = draw(st.sampled_from(STEPS))
            picked = {"i": draw(st.integers(0, len(CUTS) - 1)), "axis": draw(st.integers(0, 2))}
            nodes.append(f"{out} = {step.format(**fields, **picked)}")
        values.append(out)
    return " ".join([*nodes, f"y = Relu({values[-1]})"])


INDICES = [0, -1, 1, slice(0, 2), slice(-1, None), slice(-2, None), slice(1, 3), slice(None), (0, -1), (1,)]


def check(nodes: str, indices: tuple[Any, ...]) -> int:
    """The number of sizes at which both answered."""
    text = f'<ir_version: 8, opset_import: ["": 18]> g ({INPUTS}) => (float y) {{ {nodes} }}'
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    for name, array in weights().items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    read, answered = Read("y", indices), 0
    try:
        plain, cut = runner(proto), runner(part(ir.from_proto(proto), read))
    except BadRequest:
        return 0
    except Exception as error:
        if "onnxruntime" not in type(error).__module__:
            raise
        return 0  # shapes that never fit
    for seed, (n, s, t) in enumerate(SIZES):
        rng = np.random.default_rng(seed)
        feeds = {"a": rng.standard_normal((n, s, 4)), "b": rng.standard_normal((n, t, 4))}
        feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
        held = {value.name for value in cut.get_inputs()}
        expected, found = answer(plain, feeds), answer(cut, {k: v for k, v in feeds.items() if k in held})
        if expected is None or found is None:
            continue
        try:
            for axis, index in reversed(list(enumerate(indices))):
                expected = expected[(slice(None),) * axis + (list(index) if isinstance(index, tuple) else index,)]
        except IndexError:
            raise AssertionError(f"{nodes} {read} at {n, s, t}: an answer where the original has none") from None
        assert found.shape == expected.shape, f"{nodes} {read} at {n, s, t}: {expected.shape} and {found.shape}"
        assert np.allclose(found, expected, atol=1e-3, rtol=1e-3), f"{nodes} {read} at {n, s, t}"
        answered += 1
    return answered


def answer(session: Any, feeds: Mapping[str, Array]) -> Array | None:
    try:
        found: Array = session.run(None, feeds)[0]
    except Exception:  # ONNX Runtime's errors share no base class
        return None
    return found


def search(examples: int, phases: Sequence[Phase] = tuple(Phase)) -> int:
    answered = 0

    @settings(max_examples=examples, phases=phases, derandomize=True, database=None, deadline=None)
    @given(graphs(), st.lists(st.sampled_from(INDICES), min_size=1, max_size=3))
    def each(nodes: str, indices: list[Any]) -> None:
        nonlocal answered
        answered += check(nodes, tuple(indices))

    each()
    return answered


@pytest.mark.slow
def test_no_random_graph_gives_a_wrong_part() -> None:
    assert search(250) > 300


def plant_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table.STANDARD, "Softmax", table.Operator(elementwise))


def plant_gemm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unflatten, "_is_product", lambda node, bias: True)


@pytest.mark.slow
@pytest.mark.parametrize("plant", [plant_softmax, plant_gemm])
def test_a_planted_wrong_rule_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=r" at \("):
        search(250, [Phase.generate])  # nobody reads the smallest example of a planted fault
