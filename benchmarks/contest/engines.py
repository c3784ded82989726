"""Turns programs into functions from images to logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.contest.onnx_engines import in_onnx_engine
from benchmarks.contest.programs import Program
from benchmarks.contest.runtimes import Setup
from benchmarks.contest.torch_engines import in_torch
from benchmarks.measure.machine import cores

Run = Callable[[Any], Any]
"""uint8 images (B, C, H, W) -> float32 logits (B, classes): numpy arrays on the CPU, tensors on CUDA.

On CUDA it may return before the device has done its work.
"""

ON_ALL_CORES = Setup()


def start(program: Program, setup: Setup = ON_ALL_CORES) -> Run:
    """Raises Unavailable without the library or the device."""
    setup = replace(setup, threads=setup.threads or cores())
    return in_onnx_engine(program, setup) if isinstance(program, bytes) else in_torch(program, setup)
