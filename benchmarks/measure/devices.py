"""The device to measure: chooses it, frees its memory, and counts the cores of the CPU."""

from __future__ import annotations

import gc
import os

import click

from export.precision_table import Device


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def choose(option: str) -> Device:
    """The device for `--device`: `auto`, `cpu` or `cuda`. Raises ClickException for a missing or failing GPU."""
    if option == "cpu":
        return "cpu"
    import torch

    from export.engines.gpu import find_gpu

    if torch.cuda.is_available():
        torch.cuda.set_stream(torch.cuda.Stream())  # the default stream synchronises with all others
        return "cuda"
    if gpu := find_gpu():
        problem = f"expected PyTorch to start {gpu.name}, found {_why_not()}"
        raise click.ClickException(f"--device {option}: {problem}; --device cpu measures the CPU")
    if option == "cuda":
        raise click.ClickException("--device cuda: expected a CUDA device, found none")
    return "cpu"


def gpu_uuid() -> str:
    """The UUID of PyTorch's GPU for NVML, whose device numbers ignore CUDA_VISIBLE_DEVICES."""
    import torch

    return f"GPU-{torch.cuda.get_device_properties().uuid}"


def free() -> None:
    """Frees the memory of networks that are no longer referenced, and compiled code on a GPU."""
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
