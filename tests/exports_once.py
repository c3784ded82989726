"""Exports each network once a run: an export takes a second or more.

In: a folder that all processes of a run share. Out: a `torch.onnx.export` that keeps our networks' graphs there.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import torch
from torch import nn
from torch.onnx._internal.exporter._registration import ONNXRegistry

from export.graph import Served

OF_TORCH = vars(nn.Module()).keys()


def install(folder: Path) -> None:
    """In this process. It compiles the exporter's operator table once, too: a quarter of every export."""
    ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))  # type: ignore[method-assign]
    torch.onnx.export = once(torch.onnx.export, folder)


def once(export: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    folder.mkdir(exist_ok=True)

    def remembered(model: nn.Module, *arguments: Any, **options: Any) -> Any:
        if not isinstance(model, Served):
            return export(model, *arguments, **options)
        path = folder / f"{key(model, *arguments, options)}.onnx"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                part = path.with_suffix(".part")
                part.write_bytes(export(model, *arguments, **options).model_proto.SerializeToString())
                part.replace(path)
        return SimpleNamespace(model_proto=onnx.load(path))

    return remembered


def key(model: nn.Module, example: tuple[torch.Tensor, ...], options: dict[str, Any]) -> str:
    """Of all that decides the graph."""
    digest = hashlib.sha256(repr(([(each.shape, each.dtype) for each in example], options)).encode())
    for name, module in model.named_modules():
        kind, own = type(module), {key: value for key, value in vars(module).items() if key not in OF_TORCH}
        code = kind.forward.__code__.co_code  # tests may replace a forward
        digest.update(repr((name, kind.__module__, kind.__qualname__, code, own)).encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(repr((name, tensor.shape, tensor.dtype)).encode() + tensor.detach().numpy().tobytes())
    return digest.hexdigest()
