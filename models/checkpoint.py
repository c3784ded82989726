"""Checkpoints: a network's tensors with its configuration and metrics in one safetensors file.

In: a file, ours (safetensors) or a state dict that the study published (.pth, read with `weights_only=True`).
Out: the network in eval mode with what is known of it. What a file is, its bytes say, not its name.
"""

from __future__ import annotations

import hashlib
import json
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from models.config import ConfigError, ModelConfig
from models.files import write_atomically
from models.reference import UnknownLayoutError, from_reference
from models.registry import build

Metrics = dict[str, Any]


class CheckpointError(Exception):
    """A file that is no checkpoint; the message names the file, what was expected and what was found."""


class UntrainedBlockWarning(UserWarning):
    """A part of the network whose BatchNorms never saw a batch: its statistics are those of initialisation."""


@dataclass(frozen=True)
class Checkpoint:
    """A network (float32, eval mode) and what its file says of it."""

    path: Path
    model: nn.Module
    config: ModelConfig
    sha256: str
    metrics: Metrics = field(default_factory=dict)


def save(path: Path, model: nn.Module, config: ModelConfig, metrics: Metrics) -> None:
    """Writes the tensors of `model` (float32, as they are named in it), `config` and `metrics`; all or nothing."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_atomically(path, to_safetensors(tensors, {"config": config.to_json(), "metrics": json.dumps(metrics)}))


def load(path: Path, depth: int | None = None) -> Checkpoint:
    """The network in `path`, of which only the first `depth` blocks are read if that is given.

    Raises CheckpointError for a file that is none, whose tensors and configuration disagree, or that has fewer blocks.
    Warns with UntrainedBlockWarning where a BatchNorm never saw a batch.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: expected a checkpoint, found {error.strerror}") from error
    config, tensors, metrics = _read_reference(path) if zipfile.is_zipfile(path) else _read_safetensors(path)
    if depth is not None:
        if not 1 <= depth <= config.depth or not config.is_transformer:
            blocks = f"{config.depth} blocks" if config.is_transformer else "no transformer"
            raise CheckpointError(f"{path}: expected at least {depth} blocks (--depth {depth}), found {blocks}")
        if depth < config.depth:
            config, tensors = replace(config, depth=depth), _first_blocks(tensors, depth)
            metrics = {name: value for name, value in metrics.items() if name == "dataset"}  # of another network
    model = build(config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    _check_tensors(path, expected, tensors)
    model.load_state_dict(tensors)
    _warn_of_untrained(path, model)
    return Checkpoint(path, model.eval(), config, hashlib.sha256(data).hexdigest(), metrics)


def read_config(path: Path) -> ModelConfig:
    """The configuration in a checkpoint of ours, read without its tensors; raises CheckpointError for another file."""
    with _opened(path) as file:
        return _described(path, file.metadata())[0]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: expected safetensors or a PyTorch state dict, found neither ({error})"
        ) from error


def _read_safetensors(path: Path) -> tuple[ModelConfig, dict[str, Tensor], Metrics]:
    with _opened(path) as file:
        config, metrics = _described(path, file.metadata())
        return config, {name: file.get_tensor(name) for name in file.keys()}, metrics  # noqa: SIM118 (no mapping)


def _described(path: Path, metadata: dict[str, str] | None) -> tuple[ModelConfig, Metrics]:
    """What the metadata of a safetensors file say: the configuration and the metrics."""
    try:
        described = metadata or {}
        return ModelConfig.from_json(described["config"]), json.loads(described.get("metrics", "{}"))
    except (KeyError, ConfigError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path}: expected a model config in the metadata, found {error!r}") from error


def _read_reference(path: Path) -> tuple[ModelConfig, dict[str, Tensor], Metrics]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # on damaged bytes the unpickler raises whatever it stumbles over
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path}: expected a state dict of tensors alone, found {reason}") from error
    named = isinstance(state, Mapping) and all(isinstance(name, str) for name in state)
    if not named or not all(isinstance(value, Tensor) for value in state.values()):
        raise CheckpointError(f"{path}: expected a state dict of tensors alone, found {type(state).__name__}")
    try:
        config, tensors = from_reference(state)
    except (UnknownLayoutError, ConfigError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    return config, tensors, {}


def _first_blocks(tensors: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
    def kept(name: str) -> bool:
        return not name.startswith("blocks.") or int(name.split(".")[1]) < depth

    return {name: tensor for name, tensor in tensors.items() if kept(name)}


def _check_tensors(path: Path, expected: dict[str, tuple[int, ...]], found: dict[str, Tensor]) -> None:
    for name in sorted(expected.keys() | found.keys()):
        want = expected.get(name, "no such tensor")
        have = tuple(found[name].shape) if name in found else "none"
        if want != have:
            raise CheckpointError(f"{path}: tensor {name}: expected {want}, found {have}")


def _warn_of_untrained(path: Path, model: nn.Module) -> None:
    untrained = [
        name.removesuffix(".num_batches_tracked")
        for name, tensor in model.state_dict().items()
        if name.endswith(".num_batches_tracked") and tensor.item() == 0
    ]
    owners = sorted({".".join(name.split(".")[:2]) if name.startswith("blocks.") else name for name in untrained})
    if owners:
        warnings.warn(
            f"{path}: the BatchNorms of {', '.join(owners)} never saw a batch", UntrainedBlockWarning, stacklevel=3
        )
