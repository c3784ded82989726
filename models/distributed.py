"""Processes of `torchrun` train one network, each on its share of every batch.

They start from the same weights and average gradients before each step, in one tensor: small networks gain nothing from
DistributedDataParallel's buckets. BatchNorm normalises each share by itself; running statistics are averaged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: see `process_group`
from torch import Tensor, nn


def processes() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Only process 0 writes and prints."""
    return dist.get_rank() if dist.is_initialized() else 0


def local_device(device: str) -> str:
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and "LOCAL_RANK" in os.environ else device


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Joins torchrun's processes.

    An optimizer's first step imports `torch.distributed.nn`, which keeps the group that exists at its import. Its gloo
    threads sometimes abort the interpreter at its end, so this file imports it before there is a group.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        yield
        return
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def average_gradients(model: nn.Module) -> None:
    if processes() > 1:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        together = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(together)
        together /= processes()
        for gradient, mean in zip(gradients, together.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))


def average_buffers(model: nn.Module) -> None:
    if processes() > 1:
        for buffer in model.buffers():
            if buffer.is_floating_point():
                dist.all_reduce(buffer)
                buffer /= processes()


def sum_over_processes(value: Tensor) -> float:
    if processes() > 1:
        dist.all_reduce(value)
    return float(value)


def gather(value: Any) -> list[Any]:
    """By rank."""
    values = [None] * processes()
    if processes() == 1:
        return [value]
    dist.all_gather_object(values, value)
    return values


def manual_seed(seed: int) -> None:
    torch.manual_seed(seed + rank())
