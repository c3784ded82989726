"""An If that no input decides is its branch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from foreign_networks import check_equal, export, parse, proof_fails, written
from torch import Tensor, nn

from export.compiler.errors import NotSupported
from export.compiler.graph.inline_functions import without_functions
from export.compiler.passes import inline_branches
from export.compiler.pipeline import prepared

HEAD = '<ir_version: 8, opset_import: ["": 17]> g (float[n, s, 4] x) => (float[n, s, 4] y) '
RANK = "form = Shape(x) rank = Size(form) many = Greater(rank, two)"
TWICE = "float[n, s, 4] b) { a = Mul(x, weight) b = Add(a, a) }"
INNER = f"b = If(many) <then_branch = t () => (float[n, s, 4] c) {{ c = Tanh(x) }}, else_branch = e () => ({TWICE}>"
WEIGHTS = {"two": np.array(2), "weight": np.ones(4, np.float32), "square": np.ones((4, 4), np.float32)}
BRANCHES_OF_TWO_RANKS = [("t", "m", "b = Reshape(x, all)"), ("e", "n, s, 4", "b = Cos(same)")]
FEEDS = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)}


class Tiled(nn.Module):
    """As DINOv3 makes its angles."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 8), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.first(x.flatten(1, 2)).tile(2))
        return y[:, 0]


def network(
    condition: str = "many", then: str = "a = Sin(x) b = Neg(a)", other: str = "a = Cos(x) b = Neg(a)"
) -> ir.Model:
    branches = (f"{name} () => (float[n, s, 4] b) {{ {body} }}" for name, body in (("t", then), ("e", other)))
    nodes = "y = If({}) <then_branch = {}, else_branch = {}>".format(condition, *branches)
    return parse(f"{HEAD} {{ {RANK} few = Not(many) {nodes} }}", **WEIGHTS)


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in prepared(model).model.graph]


@pytest.mark.parametrize(
    ("model", "made"),
    [
        (network(), ["Sin", "Neg"]),
        (network("few"), ["Cos", "Neg"]),
        (network(then=INNER), ["Tanh"]),
        (network("few", other="b = Identity(x)"), ["Identity"]),
        (network(then="w = Constant<value_floats = [1.0, 2.0, 3.0, 4.0]>() b = Mul(x, w)"), ["Mul"]),
    ],
    ids=["then", "else", "branches in a branch", "an input", "a constant"],
)
def test_a_branch_takes_the_place_of_an_if(model: ir.Model, made: list[str]) -> None:
    assert operators(model) == made
    check_equal(without_functions(model), prepared(model).model, FEEDS)


def test_two_branches_whose_values_have_the_same_names() -> None:
    first, second = (
        f"{made} = If(many) <then_branch = t () => (float[n, s, 4] b) {{ a = Sin({read}) b = Neg(a) }}, "
        f"else_branch = e () => ({TWICE}>"
        for made, read in (("z", "x"), ("y", "z"))
    )
    model = parse(f"{HEAD} {{ {RANK} {first} {second} }}", **WEIGHTS)
    assert operators(model) == ["Sin", "Neg", "Sin", "Neg"]
    check_equal(without_functions(model), prepared(model).model, FEEDS)


def test_a_tile_of_torchscript_is_cut(tmp_path: Path) -> None:
    assert [node.op_type for node in export(Tiled()).graph.node].count("If") == 2
    rewritten = written(export(Tiled()), tmp_path).rewritten
    assert 2 * rewritten.steps[-1].macs < rewritten.macs


def test_an_if_that_an_input_decides_is_refused() -> None:
    nodes = "sum = ReduceSum<keepdims = 0>(x) many = Cast<to = 9>(sum)"
    with pytest.raises(NotSupported, match="expected no graph within the graph, found If with a body"):
        operators(parse(f"{HEAD} {{ {nodes} {INNER.replace('b =', 'y =', 1)} }}", **WEIGHTS))


def test_the_wrong_branch_fails_the_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_branches, "branch_of", lambda node: node.attributes["else_branch"].as_graph())
    branches = network(then="b = MatMul(x, square)", other="a = MatMul(x, square) b = Neg(a)")
    proof_fails(branches, tmp_path, "y[:,0]")


def test_a_branch_that_is_not_chosen_may_have_another_rank() -> None:
    """As TorchScript writes scatter_reduce, of which token merging is made; inference took the first branch's rank."""
    branches = (f"{name} () => (float[{dims}] b) {{ {body} }}" for name, dims, body in BRANCHES_OF_TWO_RANKS)
    chosen = "b = If(few) <then_branch = {}, else_branch = {}>".format(*branches)
    unknown = "wide = Unsqueeze(x, none) same = Squeeze(wide)"  # of unknown rank: other axes may be 1
    nodes = f"{RANK} few = Not(many) {unknown} {chosen} both = Concat<axis = 1>(x, b) y = ReduceMean<axes = [1]>(both)"
    original = parse(f"{HEAD} {{ {nodes} }}", all=np.array([-1]), none=np.array([0]), **WEIGHTS)
    either = next(node for node in original.graph if node.op_type == "If")
    for value in (original.graph.outputs[0], either.attributes["else_branch"].as_graph().outputs[0]):
        value.shape = None
    assert operators(original) == ["Unsqueeze", "Squeeze", "Cos", "Concat", "ReduceMean"]
