"""Several processes that train one network, each on its share of every batch; started by `torchrun`.

All start from the same weights and average their gradients before each step, in one tensor: networks of this size gain
nothing from DistributedDataParallel's buckets. BatchNorm normalises with the statistics of its own process's share, as
if the batch were that small; its running statistics are averaged over all processes before they are used, so the
checkpoint is the work of all. Started without torchrun there is one process, and nothing here does more than pass its
argument on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # while there is no group yet: see `process_group`
from torch import Tensor, nn


def processes() -> int:
    """How many there are."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """The number of this one, from 0; the first writes and prints."""
    return dist.get_rank() if dist.is_initialized() else 0


def local_device(device: str) -> str:
    """`cuda` -> the GPU of this process's own; other devices are shared."""
    return f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" and "LOCAL_RANK" in os.environ else device


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Joins the processes that torchrun started for as long as the block lasts: NCCL between GPUs, else gloo.

    The defaults of `torch.distributed.nn`'s functions are the group there is when it is imported, which the first step
    of an optimizer does. Then they hold the group for ever, and gloo's threads, which live as long, now and then abort
    the interpreter as it ends.
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
    """Gives every process the mean of all gradients."""
    if processes() > 1:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        together = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(together)
        together /= processes()
        for gradient, mean in zip(gradients, together.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))


def average_buffers(model: nn.Module) -> None:
    """Gives every process the mean of all running statistics."""
    if processes() > 1:
        for buffer in model.buffers():
            if buffer.is_floating_point():
                dist.all_reduce(buffer)
                buffer /= processes()


def sum_over_processes(value: Tensor) -> float:
    """The sum of one number of each process."""
    if processes() > 1:
        dist.all_reduce(value)
    return float(value)


def gather(value: Any) -> list[Any]:
    """What each process passed, in the order of ranks, on all of them."""
    values = [None] * processes()
    if processes() == 1:
        return [value]
    dist.all_gather_object(values, value)
    return values


def manual_seed(seed: int) -> None:
    """The same seed gives each process numbers of its own."""
    torch.manual_seed(seed + rank())
