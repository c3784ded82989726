"""Chooses the measured device and frees its memory; counts the cores."""

from __future__ import annotations

import gc
import os

import click

from export.precision_table import Device


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def choose(wanted: str) -> Device:
    """`wanted`: `auto`, `cpu` or `cuda`. Raises ClickException for a missing or failing GPU."""
    if wanted == "cpu":
        return "cpu"
    import torch

    from export.engines.gpu import find_gpu

    if torch.cuda.is_available():
        torch.cuda.set_stream(torch.cuda.Stream())  # the default stream synchronises with all others
        return "cuda"
    if gpu := find_gpu():
        problem = f"expected PyTorch to start {gpu.name}, found {_why_not()}"
        raise click.ClickException(f"--device {wanted}: {problem}; --device cpu measures the CPU")
    if wanted == "cuda":
        raise click.ClickException("--device cuda: expected a CUDA device, found none")
    return "cpu"


def gpu_uuid() -> str:
    """NVML's name of PyTorch's GPU: NVML's numbers ignore CUDA_VISIBLE_DEVICES."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties().uuid}"


def free() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch._dynamo.reset()
        torch.cuda.empty_cache()


def _why_not() -> str:
    import torch

    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    return "no device"
