"""Checks a file's tensors against its configuration before their size is allocated.

In: a ModelConfig and each tensor's form. Out: nothing; or WrongFile.
A file with too few tensors for its blocks is refused first. Then the network is built on PyTorch's meta device; a
configuration has at most `MAX_DEPTH` blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from models.networks.config import ModelConfig
from models.networks.registry import build

MAX_TABLE_BYTES = 1 << 26  # of constants that the network computes, such as sinusoidal positions
LEAST_TENSORS = 6  # of a block: queries, keys and values, and the FFN with its norm


class WrongFile(ValueError):
    """The file holds no network of this project. The message says what was expected and what was found."""


class Form(NamedTuple):
    """A tensor's shape and kind. `numbers`: `floating-point`, `integer`, or the name of another type."""

    shape: tuple[int, ...]
    numbers: str


def form_of(tensor: Tensor) -> Form:
    dtype = tensor.dtype
    if dtype.is_floating_point and dtype.itemsize > 1:
        return Form(tuple(tensor.shape), "floating-point")
    integer = dtype in (torch.int8, torch.int16, torch.int32, torch.int64)
    return Form(tuple(tensor.shape), "integer" if integer else str(dtype).removeprefix("torch."))


def check_tensors(config: ModelConfig, found: Mapping[str, Form]) -> None:
    """Raises WrongFile for a missing or unknown tensor, and for another shape or type."""
    if config.is_transformer and LEAST_TENSORS * config.depth > len(found):
        raise WrongFile(f"expected the tensors of {config.depth} blocks, found {len(found)} tensors")
    expected = _forms(config)
    for name, form in sorted(found.items()):
        wanted = expected.get(name)
        if wanted is None or wanted.shape != form.shape:
            shape = "no such tensor" if wanted is None else wanted.shape
            raise WrongFile(f"tensor {shown(name)}: expected {shape}, found {form.shape}")
        if wanted.numbers != form.numbers:
            raise WrongFile(f"tensor {name}: expected {wanted.numbers} numbers, found {form.numbers}")
    for name, form in expected.items():
        if name not in found:
            raise WrongFile(f"tensor {name}: expected {form.shape}, found none")


def _forms(config: ModelConfig) -> dict[str, Form]:
    try:
        with torch.device("meta"):
            network = build(config)
    except (RuntimeError, OverflowError, TypeError) as error:
        raise WrongFile("expected a network with a size that fits 64 bits, found a larger one") from error
    tensors = network.state_dict()
    tables = [table for name, table in network.named_buffers() if name not in tensors]
    if (table_bytes := sum(table.nbytes for table in tables)) > MAX_TABLE_BYTES:
        raise WrongFile(f"expected tables of up to {MAX_TABLE_BYTES} bytes, found {table_bytes}")
    return {name: form_of(tensor) for name, tensor in tensors.items()}


def shown(text: str) -> str:
    """A name from an untrusted file, short and safe to print."""
    start = text if len(text) <= 80 else f"{text[:80]}…"
    return start if start.isprintable() else ascii(start)
