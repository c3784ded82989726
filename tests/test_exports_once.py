from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import torch
from exports_once import once

from export.graph import Served
from models.networks.config import ModelConfig
from models.networks.registry import build

EXAMPLE = (torch.zeros(2, 1, 28, 28, dtype=torch.uint8),)


def network(model: str = "cnn") -> Served:
    torch.manual_seed(0)
    return Served(build(ModelConfig(model=model)).eval())


@pytest.fixture
def calls() -> list[object]:
    return []


@pytest.fixture
def export(calls: list[object], tmp_path: Path) -> Callable[..., Any]:
    """Graphs are named by number."""

    def numbered(*arguments: object, **options: object) -> SimpleNamespace:
        calls.append(arguments)
        graph = onnx.helper.make_graph([], str(len(calls)), [], [])
        return SimpleNamespace(model_proto=onnx.helper.make_model(graph))

    return once(numbered, tmp_path / "exports")


def test_the_same_network_is_exported_once(export: Callable[..., Any], calls: list[object]) -> None:
    names = [export(network(), EXAMPLE, opset_version=20).model_proto.graph.name for _ in range(2)]
    assert (names, len(calls)) == (["1", "1"], 1)


CHANGES = {
    "weight": lambda model: next(model.parameters()).data.flatten()[0].add_(1),
    "statistic": lambda model: next(model.buffers()).flatten()[0].add_(1),
    "attribute": lambda model: setattr(model, "another", True),
    "options": None,
    "example": None,
    "code": None,
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_differs_is_exported_anew(
    name: str, export: Callable[..., Any], calls: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    export(network(), EXAMPLE, opset_version=20)
    changed = network()
    if change := CHANGES[name]:
        change(changed)
    if name == "code":
        monkeypatch.setattr(torch.nn.BatchNorm2d, "forward", lambda self, x: x)
    example = (EXAMPLE[0][:1],) if name == "example" else EXAMPLE
    export(changed, example, opset_version=21 if name == "options" else 20)
    assert len(calls) == 2


def test_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        once(fails, tmp_path)(network(), EXAMPLE)
    assert not list(tmp_path.glob("*.onnx"))


def test_networks_of_others_are_not_remembered(export: Callable[..., Any], calls: list[object]) -> None:
    for _ in range(2):
        export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    assert len(calls) == 2
