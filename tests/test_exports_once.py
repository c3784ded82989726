from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import exports_once
import onnx
import pytest
import torch
from exports_once import once
from random_networks import network as randomised

from export.checkpoint_to_onnx import Uint8Network, to_onnx
from models.networks.config import ModelConfig
from models.networks.registry import build

EXAMPLE = (torch.zeros(2, 1, 28, 28, dtype=torch.uint8),)
EXPORT = torch.onnx.export  # a run of the tests remembers later


def network(model: str = "cnn") -> Uint8Network:
    torch.manual_seed(0)
    return Uint8Network(build(ModelConfig(model=model)).eval())


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


def test_what_a_network_says_of_its_pictures_decides_no_graph() -> None:
    garments = ModelConfig(labels=tuple("abcdefghij"), preprocessing="photo", background="dark", fill=0.9)
    keys = [exports_once.as_drawings(each) for each in (garments, ModelConfig(), ModelConfig(pool="mean"))]
    assert keys[0] == keys[1] != keys[2]


@pytest.mark.parametrize("name", ["attribute", "options", "example", "code"])
def test_a_network_that_differs_is_exported_anew(
    name: str, export: Callable[..., Any], calls: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    export(network(), EXAMPLE, opset_version=20)
    changed = network()
    if name == "attribute":
        changed.model.another = True
    if name == "code":
        monkeypatch.setattr(torch.nn.BatchNorm2d, "forward", lambda self, x: x)
    example = (EXAMPLE[0][:1],) if name == "example" else EXAMPLE
    export(changed, example, opset_version=21 if name == "options" else 20)
    assert len(calls) == 2


def without_names(proto: onnx.ModelProto) -> bytes:
    """Values are named by their place: the exporter counts its values."""
    numbers: dict[str, str] = {}
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [name and numbers.setdefault(name, str(len(numbers))) for name in names]
        node.name = ""
    for values in (proto.graph.input, proto.graph.output, proto.graph.initializer, proto.graph.value_info):
        for value in values:
            value.name = numbers[value.name]
        values.sort(key=lambda value: int(value.name))
    return proto.SerializeToString(deterministic=True)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["vit-repbn", "cnn"])
def test_weights_of_another_network_go_into_the_same_graph(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, calls = ModelConfig(model=model, depth=1, dim=16, heads=2, dim_head=8, mlp_dim=16), []

    def graph(seed: int) -> bytes:
        return without_names(to_onnx(Uint8Network(randomised(config, seed)), config, 20))

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return EXPORT(*arguments, **options)

    monkeypatch.setattr(torch.onnx, "export", EXPORT)
    expected = graph(1)
    monkeypatch.setattr(torch.onnx, "export", once(counted, tmp_path / "exports"))
    assert graph(0) != expected, "the numbers are part of the comparison"
    assert graph(1) == expected
    assert len(calls) == 1


def test_a_network_of_a_test_is_exported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports_once, "FOLDERS", [tmp_path])
    calls: list[object] = []

    def export() -> onnx.ModelProto:
        calls.append(None)
        return onnx.helper.make_model(onnx.helper.make_graph([], str(len(calls)), [], []))

    torch.manual_seed(0)
    network, other = (torch.nn.Sequential(torch.nn.Linear(2, 2)) for _ in range(2))
    for model, opset in ((network, 17), (network, 17), (network, 20), (other, 17)):
        exports_once.of_a_test(model, {"opset": opset}, export).graph.name += " changed"
    made = [exports_once.of_a_test(model, {"opset": 17}, export).graph.name for model in (network, other)]
    assert (made, len(calls)) == (["1", "3"], 3)


def test_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    def fails(*arguments: object, **options: object) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        once(fails, tmp_path)(network(), EXAMPLE)
    assert not list(tmp_path.glob("*.onnx"))
