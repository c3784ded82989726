"""Checks a file's tensors against its configuration before their size is allocated.

In: a ModelConfig and each tensor's form. Out: nothing; or WrongTensors.
A file of 1 kB may claim a depth of 10,000,000. So one block on PyTorch's meta device stands for all; under class
attention a second stands for the last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from models.config import ModelConfig
from models.registry import build

MAX_TABLE_BYTES = 1 << 26  # of constants in no file, such as sinusoidal positions
BLOCK = re.compile(r"blocks\.(0|[1-9]\d{0,8})\.(.+)", re.DOTALL)


class WrongTensors(ValueError):
    pass


class Form(NamedTuple):
    """`numbers`: `floating-point`, `integer`, or another type's name."""

    shape: tuple[int, ...]
    numbers: str


def form_of(tensor: Tensor) -> Form:
    dtype = tensor.dtype
    if dtype.is_floating_point and dtype.itemsize > 1:
        return Form(tuple(tensor.shape), "floating-point")
    integer = dtype in (torch.int8, torch.int16, torch.int32, torch.int64)
    return Form(tuple(tensor.shape), "integer" if integer else str(dtype).removeprefix("torch."))


def check_tensors(config: ModelConfig, found: Mapping[str, Form]) -> None:
    expected = _few_blocks(config)
    for name in sorted(found):
        form = expected.get(_stand_in(name, config))
        if form is None or form.shape != found[name].shape:
            shape = "no such tensor" if form is None else form.shape
            raise WrongTensors(f"tensor {shown(name)}: expected {shape}, found {found[name].shape}")
        if form.numbers != found[name].numbers:
            raise WrongTensors(f"tensor {name}: expected {form.numbers} numbers, found {found[name].numbers}")
    for name in _names(expected, config):  # stops at the first missing tensor: a huge depth is free
        if name not in found:
            shape = expected[_stand_in(name, config)].shape
            raise WrongTensors(f"tensor {name}: expected {shape}, found none")


def _built(config: ModelConfig) -> int:
    return 1 if config.class_attention is None else min(2, config.depth)


def _few_blocks(config: ModelConfig) -> dict[str, Form]:
    try:
        with torch.device("meta"):
            network = build(replace(config, depth=_built(config)))
    except (RuntimeError, OverflowError, TypeError) as error:
        raise WrongTensors("expected a network with a size that fits 64 bits, found a larger one") from error
    tensors = network.state_dict()
    tables = {name: table for name, table in network.named_buffers() if name not in tensors}
    table_bytes = sum(
        table.numel() * table.itemsize * (config.depth if BLOCK.fullmatch(name) else 1)
        for name, table in tables.items()
    )
    if table_bytes > MAX_TABLE_BYTES:
        raise WrongTensors(f"expected tables of up to {MAX_TABLE_BYTES} bytes, found {table_bytes}")
    return {name: form_of(tensor) for name, tensor in tensors.items()}


def _stand_in(name: str, config: ModelConfig) -> str:
    block = BLOCK.fullmatch(name)
    if not block or int(block[1]) >= config.depth:
        return name
    last = int(block[1]) == config.depth - 1
    return f"blocks.{_built(config) - 1 if last else 0}.{block[2]}"


def _names(expected: Mapping[str, Form], config: ModelConfig) -> Iterator[str]:
    blocks = [match.groups() for match in map(BLOCK.fullmatch, expected) if match]
    yield from (name for name in expected if not BLOCK.fullmatch(name))
    for number in range(config.depth):
        alike = str(_built(config) - 1 if number == config.depth - 1 else 0)
        yield from (f"blocks.{number}.{rest}" for block, rest in blocks if block == alike)


def shown(text: str) -> str:
    """A stranger's name, safe to print."""
    start = text if len(text) <= 80 else f"{text[:80]}…"
    return start if start.isprintable() else ascii(start)
