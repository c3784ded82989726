"""PyTorch's exporter, run once for each network.

In: a folder that all processes of a test run share. Out: a `torch.onnx.export` that keeps the graphs of our networks
there. The tests export the same networks again and again, at a second or more each.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import torch
from torch import nn

from export.graph import Served


def once(export: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """`export` with a memory; other networks than `Served` are exported every time."""
    folder.mkdir(exist_ok=True)

    def remembered(model: nn.Module, *arguments: Any, **options: Any) -> Any:
        if not isinstance(model, Served):
            return export(model, *arguments, **options)
        path = folder / f"{key(model, *arguments, options)}.onnx"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be exporting the same network
            if not path.exists():
                part = path.with_suffix(".part")
                part.write_bytes(export(model, *arguments, **options).model_proto.SerializeToString())
                part.replace(path)
        return SimpleNamespace(model_proto=onnx.load(path))

    return remembered


def key(model: nn.Module, example: tuple[torch.Tensor, ...], options: dict[str, Any]) -> str:
    """Of all that decides the graph: classes, attributes, tensors and code of the network, the example, the options."""
    content = io.BytesIO()
    torch.save(model, content)
    code = [type(module).forward.__code__.co_code for module in model.modules()]  # tests may replace a forward
    tensors = [(tensor.shape, tensor.dtype) for tensor in example]
    return hashlib.sha256(content.getvalue() + repr((code, tensors, options)).encode()).hexdigest()
