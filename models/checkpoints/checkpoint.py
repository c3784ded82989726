"""Checkpoints: tensors, configuration and metrics in a safetensors file.

In: our file or a state dict of the published study (.pth); the content decides which, not the name. Out: a
`Checkpoint`. The sizes that a file claims are checked before memory is allocated.
"""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from common.files import regular, sha256, write_atomically
from models.checkpoints import metrics as metrics_json
from models.checkpoints.metrics import Metrics, MetricsError
from models.checkpoints.safe_torch_load import is_legacy, read_state_dict
from models.checkpoints.study_state_dicts import from_reference
from models.checkpoints.tensor_check import Form, WrongFile, check_tensors, form_of, shown
from models.networks.config import ConfigError, ModelConfig
from models.networks.registry import build

MAX_HEADER_BYTES = 1 << 23  # some 60,000 tensors
FLOATING = ("F64", "F32", "F16", "BF16")
INTEGER = ("I64", "I32", "I16", "I8")


class CheckpointError(Exception):
    pass


class UntrainedBlockWarning(UserWarning):
    pass


@dataclass(frozen=True)
class Checkpoint:
    """The network is float32, in eval mode. `note`: which wrappers of another program were removed; else empty."""

    path: Path
    model: nn.Module
    config: ModelConfig
    sha256: str
    metrics: Metrics = field(default_factory=dict)
    note: str = ""


def save(path: Path, model: nn.Module, config: ModelConfig, metrics: Metrics) -> None:
    """Raises MetricsError for metrics that `load` would refuse."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    metadata = {"config": config.to_json(), "metrics": metrics_json.to_json(metrics)}
    write_atomically(path, _serialise(tensors, metadata))


def _serialise(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """The same bytes for the same values: safetensors itself writes the metadata in a random order."""
    content = to_safetensors(tensors, metadata)
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    described = {"__metadata__": dict(sorted(header.pop("__metadata__").items())), **header}
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # aligns the tensors
    return len(text).to_bytes(8, "little") + text + content[end:]


def add_metrics(path: Path, added: Metrics) -> None:
    """Adds metrics to the file. Raises CheckpointError unless `path` is a safetensors checkpoint."""
    with _opened(path) as file, _errors_named(path):
        metadata = dict(file.metadata() or {})
        _, metrics = _read_metadata(metadata)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    metadata |= {"metrics": metrics_json.to_json(metrics | added)}
    write_atomically(path, _serialise(tensors, metadata))


def load(path: Path, depth: int | None = None) -> Checkpoint:
    """`depth`: keeps only the first blocks. Raises CheckpointError for other files, wrong tensors or too few blocks."""
    _check_regular(path)
    metrics, note = Metrics(), ""
    if zipfile.is_zipfile(path):
        config, tensors, note = _read_reference(path)
    else:
        config, tensors, metrics = _read_safetensors(path)
    if depth is not None:
        if not 1 <= depth <= config.depth or not config.is_transformer:
            blocks = f"{config.depth} blocks" if config.is_transformer else "no transformer"
            raise CheckpointError(f"{path}: expected at least {depth} blocks (--depth {depth}), found {blocks}")
        if depth < config.depth and config.class_attention is not None:
            needs = f"expected all {config.depth} blocks, found --depth {depth}: class attention needs the last"
            raise CheckpointError(f"{path}: {needs}")
        if depth < config.depth:
            config, tensors = replace(config, depth=depth), _first_blocks(tensors, depth)
            metrics = metrics_json.of_dataset(metrics)  # the other entries describe the network with all blocks
    model = build(config)
    model.load_state_dict(tensors)
    _warn_of_untrained(path, model)
    return Checkpoint(path, model.eval(), config, sha256(path), metrics, note)


def read_config(path: Path) -> ModelConfig:
    """The configuration in a safetensors checkpoint, without its tensors. Raises CheckpointError."""
    with _opened(path) as file, _errors_named(path):
        return _read_metadata(file.metadata())[0]


def _check_regular(path: Path) -> None:
    try:
        regular(path)
    except OSError as error:
        raise CheckpointError(f"{path}: expected a checkpoint, found {error.strerror}") from error


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        if is_legacy(path):
            raise CheckpointError(
                f"{path}: expected a zip file, as torch.save writes since PyTorch 1.6, found its older form; "
                "read it where you trust it and save its state dict again"
            )
        with path.open("rb") as file:
            header = int.from_bytes(file.read(8), "little")
        if header > MAX_HEADER_BYTES:
            raise SafetensorError(f"a header of {header} bytes")
        with safe_open(path, framework="pt") as opened:
            yield opened
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: expected safetensors or a PyTorch state dict, found neither ({shown(str(error))})"
        ) from error


@contextmanager
def _errors_named(path: Path) -> Iterator[None]:
    """Turns errors about a file's content into a CheckpointError that names the file."""
    try:
        yield
    except (WrongFile, ConfigError, MetricsError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def _read_safetensors(path: Path) -> tuple[ModelConfig, dict[str, Tensor], Metrics]:
    with _opened(path) as file, _errors_named(path):
        config, metrics = _read_metadata(file.metadata())
        names = list(file.keys())
        check_tensors(config, {name: _form(file.get_slice(name)) for name in names})
        return config, {name: file.get_tensor(name) for name in names}, metrics


def _form(part: Any) -> Form:
    kind = part.get_dtype()
    numbers = "floating-point" if kind in FLOATING else "integer" if kind in INTEGER else kind
    return Form(tuple(part.get_shape()), numbers)


def _read_metadata(metadata: dict[str, str] | None) -> tuple[ModelConfig, Metrics]:
    """Configuration and metrics. Raises WrongFile, ConfigError and MetricsError."""
    entries = metadata or {}
    if "config" not in entries:
        raise WrongFile("expected a model config in the metadata, found none")
    return ModelConfig.from_json(entries["config"]), metrics_json.from_json(entries.get("metrics", "{}"))


def _read_reference(path: Path) -> tuple[ModelConfig, dict[str, Tensor], str]:
    with _errors_named(path):
        state, note = read_state_dict(path)
        config, tensors = from_reference(state)
        check_tensors(config, {name: form_of(tensor) for name, tensor in tensors.items()})
        return config, tensors, note


def _first_blocks(tensors: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
    def is_kept(name: str) -> bool:
        return not name.startswith("blocks.") or int(name.split(".")[1]) < depth

    return {name: tensor for name, tensor in tensors.items() if is_kept(name)}


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
