"""Networks whose rounding absolute tolerances of 1e-10 and 1e-4 refused, though nothing was wrong with them."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from onnx import ModelProto, numpy_helper
from torch import nn

from export import graph
from export.equivalence import EquivalenceError
from export.graph import Exported, export
from export.pipeline import Form
from export.rewrites.pipeline import Step
from models.checkpoint import Checkpoint, load
from models.config import ModelConfig
from models.data import load_digits
from models.train import TrainingOptions
from models.training import train

CASES = [("all", None), ("bn", None), ("all", 51.0), ("all", 2e4)]
NAMES = ["all rewrites", "folded norms", "logits of 51", "logits of 20,000"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def diverged(made_once: Callable[[str, Callable[[Path], object]], Path]) -> Checkpoint:
    """Two blocks, trained at too high a rate: activations of thousands, logits below 10."""

    def make(path: Path) -> None:
        options = TrainingOptions(epochs=3, batch_size=50, lr=0.03, seed=1, device="cpu")
        for _ in train(ModelConfig(model="vit", depth=2), load_digits(), options, path):
            pass

    return load(made_once("checkpoints/diverged.safetensors", make))


def with_logits(checkpoint: Checkpoint, largest: float | None) -> Checkpoint:
    model = copy.deepcopy(checkpoint.model)
    if largest:
        images = load_digits().test_images[:64]
        with torch.no_grad():
            factor = largest / float(model(torch.tensor(images) / 255).abs().max())
            model.get_submodule("head").weight *= factor
            model.get_submodule("head").bias *= factor
    return replace(checkpoint, model=model)


def exported(checkpoint: Checkpoint, rewrites: str) -> Exported:
    form = Form(rewrites)
    return export(checkpoint, form.passes, form.required)


@pytest.mark.parametrize(("rewrites", "largest"), CASES, ids=NAMES)
def test_rounding_is_judged_by_the_size_of_the_answers_and_the_networks_own(
    rewrites: str, largest: float | None, diverged: Checkpoint
) -> None:
    double, single = exported(with_logits(diverged, largest), rewrites).comparisons
    assert single.own is not None
    assert single.own > 1e-4, "so two float32 programs of this network differ by more than the old tolerance"
    assert single.max_abs_error <= single.tolerance
    assert single.relative < 1e-4
    assert double.max_abs_error < 1e-12 * double.largest
    assert f"where the network's own is {single.own:.2e}, tolerance {single.tolerance:.2e}" in str(single)
    if largest == 2e4:
        assert double.max_abs_error > 1e-10


def forgotten_bias(model: nn.Module) -> None:
    model.get_parameter("blocks.0.ffn.linear1.bias").data[0] = 0


def slightly_wrong_weight(model: nn.Module) -> None:
    model.get_parameter("blocks.1.ffn.linear1.weight").data[0] *= 1 + 1e-6


@pytest.mark.parametrize("fault", [forgotten_bias, slightly_wrong_weight])
@pytest.mark.parametrize(("rewrites", "largest"), CASES, ids=NAMES)
def test_a_wrong_rewrite_of_them_is_refused(
    rewrites: str,
    largest: float | None,
    fault: Callable[[nn.Module], None],
    diverged: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = graph.apply

    def wrong(*arguments: object) -> tuple[nn.Module, list[Step]]:
        model, steps = real(*arguments)
        fault(model)
        return model, steps

    monkeypatch.setattr(graph, "apply", wrong)
    with pytest.raises(EquivalenceError, match=r"rewritten, float64: expected an error of at most 1\.0e-10"):
        exported(with_logits(diverged, largest), rewrites)


@pytest.mark.parametrize(("rewrites", "largest"), CASES, ids=NAMES)
def test_a_wrong_graph_of_them_is_refused(
    rewrites: str, largest: float | None, diverged: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = graph.to_onnx

    def wrong(*arguments: object) -> ModelProto:
        proto = real(*arguments)
        head = next(tensor for tensor in proto.graph.initializer if tensor.dims == [10])
        head.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(head) * (1 + 1e-3), head.name))
        return proto

    monkeypatch.setattr(graph, "to_onnx", wrong)
    with pytest.raises(EquivalenceError, match="ONNX, float32: expected an error of at most"):
        exported(with_logits(diverged, largest), rewrites)
