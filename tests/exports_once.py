"""Traces each network's graph once a run: an export takes three seconds or more.

In: a folder that all processes of a run share. Out: a `torch.onnx.export` that keeps our networks' graphs there. Before
the exporter optimises a graph, the graph depends on no number of its network: other weights go into the same graph.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnx_ir as ir
import torch
from made_once import make_once
from torch import nn
from torch._export import utils as export_utils
from torch.onnx._internal.exporter._registration import ONNXRegistry

from export.checkpoint_to_onnx import Uint8Network
from models.networks.config import ModelConfig

OF_TORCH = vars(nn.Module()).keys()
FOLDERS: list[Path] = []


def install(folder: Path) -> None:
    """In this process. It makes two of the exporter's tables once, too: over a quarter of every export."""
    FOLDERS[:] = [folder]
    ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))  # type: ignore[method-assign]
    export_utils._materialize_cpp_cia_ops = functools.cache(export_utils._materialize_cpp_cia_ops)
    torch.onnx.export = once(torch.onnx.export, folder)


def once(export: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    folder.mkdir(exist_ok=True)

    def remembered(model: nn.Module, *arguments: Any, **options: Any) -> Any:
        if not isinstance(model, Uint8Network):
            return export(model, *arguments, **options)
        whole, graph = (folder / f"{key(model, *arguments, options, weights)}.onnx" for weights in (True, False))

        def write_graph(path: Path) -> None:
            traced = export(model, *arguments, **options, optimize=False)
            path.write_bytes(traced.model_proto.SerializeToString())

        def write_whole(path: Path) -> None:
            proto = with_weights(onnx.load(make_once(graph, write_graph)), model)
            path.write_bytes(proto.SerializeToString())

        return SimpleNamespace(model_proto=onnx.load(make_once(whole, write_whole)))

    return remembered


def of_a_test(model: nn.Module, options: dict[str, Any], export: Callable[[], onnx.ModelProto]) -> onnx.ModelProto:
    """What `export` makes of a test's own `model` in its first call in a run."""
    if not FOLDERS:
        return export()
    path = FOLDERS[0] / f"{key(model, (), options, weights=True)}.onnx"
    return onnx.load(make_once(path, lambda path: path.write_bytes(export().SerializeToString())))


def with_weights(proto: onnx.ModelProto, model: nn.Module) -> onnx.ModelProto:
    """The graph of a network like `model`, optimised as the exporter does with the numbers of `model`."""
    program = torch.onnx.ONNXProgram(ir.from_proto(proto), None)
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    program.apply_weights({name: tensor for name, tensor in named.items() if name in program.model.graph.initializers})
    program.optimize()
    return program.model_proto


def as_drawings(value: object) -> object:
    """A configuration without what it says of pictures and names of classes, which decide no graph."""
    if not isinstance(value, ModelConfig):
        return value
    usual = {name: getattr(ModelConfig(), name) for name in ("preprocessing", "background", "fill")}
    return replace(value, labels=tuple(map(str, range(value.num_classes))), **usual)


def key(model: nn.Module, example: tuple[torch.Tensor, ...], options: dict[str, Any], weights: bool) -> str:
    """Of all that decides the graph; `weights`: and its numbers."""
    digest = hashlib.sha256(repr(([(each.shape, each.dtype) for each in example], options, weights)).encode())
    for name, module in model.named_modules():
        kind, own = (
            type(module),
            {key: as_drawings(value) for key, value in vars(module).items() if key not in OF_TORCH},
        )
        code = kind.forward.__code__.co_code  # tests may replace a forward
        told = repr((name, kind.__module__, kind.__qualname__, code, own))
        digest.update(re.sub(" at 0x[0-9a-f]+", "", told).encode())  # another in each process
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(repr((name, tensor.shape, tensor.dtype)).encode())
        digest.update(tensor.detach().flatten().contiguous().view(torch.uint8).numpy().tobytes() if weights else b"")
    return digest.hexdigest()
